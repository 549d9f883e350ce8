"""`refocal apply`: calibrate predictions with a saved calibrator."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from refocal.cli import detections, segmentation
from refocal.cli.options import (
    APPLYING_MEMORY,
    Commands,
    add_columns,
    add_command,
    add_engine,
    add_force,
    add_memory,
)

if TYPE_CHECKING:
    from refocal.calibrators import Calibrator

_EXAMPLES = """\
refocal apply cal.json new.parquet --out probs.parquet
refocal apply cal.json customers.csv --prob churn_probability --out calibrated.csv    # keeps the other columns
refocal apply cal.json boxes.json --out calibrated.json    # of a detector; all other fields stay as they are
refocal apply cal.json masks.npz --out probs.npz    # of a segmentation network
refocal apply cal.json 'new/*.parquet' --out probs --engine ray    # run again to resume"""


def add_parser(commands: Commands) -> None:
    """Add the command."""
    command = add_command(commands, "apply", "calibrate predictions with a saved calibrator", _EXAMPLES, run)
    command.add_argument("calibrator", metavar="CALIBRATOR", help="a file written by calibrate --save")
    command.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="predictions; labels are not needed and are kept as they are; or boxes: .json",
    )
    command.add_argument(
        "--out", metavar="PATH", required=True, help="write the probabilities: a file, or a folder for many files"
    )
    add_columns(command)
    segmentation.add_options(command, labels=False)
    add_force(command)
    add_memory(command, meaning=APPLYING_MEMORY)
    add_engine(command, owner="refocal.scale.application:apply")


def run(options: Namespace) -> None:
    """Calibrate one file into a file, or many into a folder."""
    from refocal.cli.data_sets import is_data_set
    from refocal.cli.inputs import choose_columns
    from refocal.cli.output import SUFFIXES, check_outputs, show
    from refocal.cli.progress import track
    from refocal.scale.application import calibrate_file

    calibrator = _load_calibrator(options.calibrator)
    if detections.are_boxes(options.files):
        detections.apply(options, calibrator)
        return
    if segmentation.are_asked_for(options, options.files):
        segmentation.apply(options, calibrator)
        return
    names_file = Path(options.out).suffix in SUFFIXES["out"]
    is_folder = Path(options.out).is_dir() and not names_file
    if is_folder or len(options.files) > 1 or is_data_set(options, options.files):
        if names_file:
            msg = f"--out must be a folder for many files, got {options.out!r}"
            raise ValueError(msg)
        _run_many(options, calibrator)
        return
    check_outputs(options, [options.calibrator, *options.files])
    with track() as progress:
        rows = calibrate_file(
            calibrator,
            options.files[0],
            options.out,
            columns=choose_columns(options),
            overwrite=options.force,
            progress=lambda rows: progress.step(f"calibrating: {rows:,} rows"),
        )
    show(options, f"{rows:,} rows calibrated: {options.out}", {"rows": rows, "out": options.out})


def _load_calibrator(path: str) -> Calibrator:
    """Load the calibrator before anything else, so that an error names it if the arguments are in the wrong order."""
    from refocal.calibrators import load
    from refocal.cli.output import SUFFIXES

    if Path(path).suffix.lower() in SUFFIXES["out"]:
        msg = f"{path} is not a calibrator file (.json): name the calibrator first, then the predictions"
        raise ValueError(msg)
    return load(path)


def _run_many(options: Namespace, calibrator: Calibrator) -> None:
    """Calibrate files into a folder."""
    from refocal import scale
    from refocal.cli.data_sets import engine_settings
    from refocal.cli.inputs import choose_columns
    from refocal.cli.output import show
    from refocal.cli.progress import track

    with track() as progress:
        done = scale.apply(
            calibrator,
            options.files,
            options.out,
            columns=choose_columns(options),
            overwrite=options.force,
            progress=progress.show_files,
            **engine_settings(options),
        )
    files = "1 file" if done.written == 1 else f"{done.written:,} files"
    kept = f", {done.kept:,} {'was' if done.kept == 1 else 'were'} done already" if done.kept else ""
    text = f"{done.rows:,} rows of {files} calibrated{kept}: {options.out}"
    show(options, text, {**done._asdict(), "out": options.out})
