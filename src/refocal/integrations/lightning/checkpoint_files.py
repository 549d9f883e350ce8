"""Calibrators beside Lightning's checkpoints: which weights were saved as the best, and whose calibrator is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from refocal.calibrators import Calibrator

_SUFFIX = ".calibrator.json"


def calibrator_path(checkpoint: str | Path) -> Path:
    """Return where `CalibrationCallback` leaves the calibrator of a checkpoint.

    Example:
        >>> calibrator_path("checkpoints/epoch=3-step=400.ckpt").name
        'epoch=3-step=400.calibrator.json'
    """
    path = Path(checkpoint)
    return path.with_name(path.name.removesuffix(".ckpt") + _SUFFIX)


class Best(NamedTuple):
    """The best checkpoint of the first `ModelCheckpoint`. A file that is overwritten counts as another one."""

    path: Path
    score: float | None
    modified: int

    @classmethod
    def of(cls, trainer: Trainer) -> Best | None:
        """Find it; None if there is none yet."""
        callback = trainer.checkpoint_callback
        path = getattr(callback, "best_model_path", "")
        if not path or not Path(path).exists():
            return None
        score = getattr(callback, "best_model_score", None)
        return cls(Path(path), None if score is None else float(score), Path(path).stat().st_mtime_ns)


class CheckpointFiles:
    """Keep the calibrators beside the checkpoints of one training.

    Lightning's hook for saved checkpoints runs before the file is there, and does not give its name. So a save is
    noted, and the next hook looks at it, before the weights change.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._best = Best.of(trainer)  # of the training that is resumed
        self.best_step: int | None = None  # not known of an earlier training
        self._unseen = False
        self._calibrated = set() if self._best is None else {self._best.path}

    def expect(self) -> None:
        """Note that a checkpoint is being saved."""
        self._unseen = True

    def look(self, trainer: Trainer) -> bool:
        """If there was a save, see whether it made the present weights the best checkpoint."""
        if not self._unseen:
            return False
        self._unseen = False
        previous, self._best = self._best, Best.of(trainer)
        for gone in [path for path in self._calibrated if not path.exists()]:
            calibrator_path(gone).unlink(missing_ok=True)
            self._calibrated.remove(gone)
        if self._best is None or self._best == previous:
            return False
        self.best_step = trainer.global_step
        calibrator_path(self._best.path).unlink(missing_ok=True)  # of weights that this save has overwritten
        return True

    def write(self, calibrator: Calibrator, step: int) -> Path | None:
        """Write the calibrator of the weights of a step, if these are the best checkpoint; return the file."""
        if self._best is None or self.best_step != step:
            return None
        path = calibrator_path(self._best.path)
        calibrator.save(path, overwrite=True)
        self._calibrated.add(self._best.path)
        return path
