"""Calibration while Lightning trains: a callback that measures it and leaves a calibrator beside the checkpoint."""

from refocal._extras import require

require("lightning", extra="lightning", user="refocal.integrations.lightning")

from refocal.integrations.lightning.callback import CalibrationCallback  # noqa: E402
from refocal.integrations.lightning.checkpoint_files import calibrator_path  # noqa: E402

__all__ = ["CalibrationCallback", "calibrator_path"]
