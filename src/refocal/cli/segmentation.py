"""What the commands do with the images of a segmentation network: npz files of scores with spatial axes."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refocal.cli import multilabel
from refocal.cli.data_sets import Source, find_source, find_sources, given
from refocal.cli.options import add_option

if TYPE_CHECKING:
    from refocal.calibrators import Calibrator
    from refocal.cli.image_batches import ImageBatches

_FLAGS = {"ignore_index": "--ignore-index", "axis": "--axis"}
_SUFFIXES = {"save": (".json",), "out": (".npz",)}
_REJECTED = ("task", "classes", "split", "slice", "costs", "sets", "engine", "report")


def add_options(command: Any, *, labels: bool = True, more: str = "") -> None:
    """Add --axis and, where labels are read, --ignore-index; `more` ends the description of their group."""
    group = command.add_argument_group(
        "images of a segmentation network",
        "npz files with scores of shape (N, classes, H, W), or other spatial axes, and labels (N, H, W)" + more,
    )
    if labels:
        group.add_argument(
            "--ignore-index",
            type=int,
            metavar="LABEL",
            help="pixels with this label do not count, such as 255 (default: all pixels count)",
        )
    add_option(
        group,
        "--axis",
        type=int,
        owner="refocal.segmentation.pixels:predict_proba",
        help="axis of the classes; -1 if they are last",
    )


def are_asked_for(options: Namespace, files: Sequence[str]) -> bool:
    """Whether a command is about images, by the shape of the scores in the first file that each name stands for."""
    from refocal.cli.inputs import choose_columns
    from refocal.predictions.errors import PredictionsError
    from refocal.predictions.images import holds_images

    firsts = [find_source([file]).files[0] for file in files]
    wanted = [flag for name, flag in _FLAGS.items() if getattr(options, name, None) is not None]
    try:
        found = any(holds_images(file, columns=choose_columns(options)) for file in firsts)
    except (OSError, PredictionsError):
        if wanted:
            raise
        return False  # the reader of rows reports it
    if found:
        for name in _REJECTED:
            if getattr(options, name, None):
                msg = f"--{name} does not work with the images of a segmentation network: leave it out"
                raise ValueError(msg)
        return True
    if wanted:
        msg = f"{wanted[0]} is only for the images of a segmentation network, npz files with scores (N, classes, H, W)"
        raise ValueError(msg)
    return False


def evaluate(options: Namespace) -> None:
    """Measure images, each data set separately."""
    from rich.console import Group

    from refocal import segmentation
    from refocal.cli.output import check_outputs, show
    from refocal.cli.progress import track
    from refocal.scale.parts import unchanged
    from refocal.segmentation.table import build_tables

    sources = find_sources(options, options.files)
    check_outputs(options, [file for source in sources for file in source.files], allowed=_SUFFIXES)
    tables, contents = [], []
    with track() as progress, unchanged(Path(file) for source in sources for file in source.files):
        opened = [_open(options, source) for source in sources]
        for source, images in zip(sources, opened, strict=True):
            calibration = segmentation.SegmentationCalibration(
                max(2, images.channels), input=images.input, **_layout(options)
            )
            with images.naming():
                for scores, labels in images:
                    progress.count(f"measuring {source.name}", images.done, images.count, "images")
                    calibration.update(scores, labels)
                summary = calibration.compute(**given(options, "seed"))
            tables.append(build_tables(summary, source=source.name, class_names=images.class_names))
            about = {"task": "segmentation", "source": source.name, "class_names": images.class_names}
            contents.append(json.loads(summary.to_json()) | about)
    show(options, Group(*tables), contents[0] if len(contents) == 1 else {"files": contents, "paired": []})


def calibrate(options: Namespace, settings: dict[str, Any], *, share: float) -> None:
    """Fit calibrators to images, and measure them on others: those of --test, or a share that is held out."""
    from refocal import _check, segmentation
    from refocal.cli.output import check_outputs, show, show_line
    from refocal.cli.progress import track
    from refocal.scale.parts import unchanged
    from refocal.segmentation.selection import METHODS

    _check.one_of(settings.get("method", METHODS[0]), "for images, --method", METHODS)
    val, test = find_source([options.val]), None if options.test is None else find_source([options.test])
    check_outputs(options, [*val.files, *([] if test is None else test.files)], allowed=_SUFFIXES)
    with track() as progress:
        with unchanged(Path(file) for file in (*val.files, *([] if test is None else test.files))):
            fitted, measured, protocol = _open_both(options, val, test, share=share)
            with fitted.naming():
                selection = segmentation.calibrate(
                    fitted, input=fitted.input, progress=progress.step, **_layout(options), **settings
                )
            name = (test or val).name
            progress.step(f"measuring {name}")
            with measured.naming():
                found = selection.measure(measured, source=name, protocol=protocol, **given(options, "seed"))
        written = {}
        if options.save:
            selection.save(options.save, overwrite=options.force)
            written["calibrator"] = options.save
        if options.out:
            progress.step(f"writing {options.out}")
            _write(options, selection.chosen.calibrator, measured)
            written["predictions"] = options.out
    show(options, found, {**json.loads(found.to_json()), "written": written})
    if not options.json:
        for what, where in written.items():
            show_line(f"{what}: {where}")


def _open_both(
    options: Namespace, val: Source, test: Source | None, *, share: float
) -> tuple[ImageBatches, ImageBatches, str]:
    """Open the images to fit to and those to measure on; and say so if they were held out."""
    from refocal.report.cross_fitting import hold_out

    fitted, protocol = _open(options, val), ""
    multilabel.check_loss(options, fitted.channels)
    if test is None:
        rows = hold_out(fitted.count, share, unit="images", **given(options, "seed"))
        fitted, measured, protocol = fitted.take(rows.fitted), fitted.take(rows.measured), rows.protocol
    else:
        measured = _open(options, test)
        if {*map(os.path.realpath, val.files)} & {*map(os.path.realpath, test.files)}:
            msg = f"{val.name} cannot be both fitted to and measured on: give other test images, or leave out --test"
            raise ValueError(msg)
        fitted.check_same(measured)
    if options.out and len({file.shape[1:] for file in measured.files}) > 1:
        msg = f"--out needs images of one size, but those of {(test or val).name} differ: leave it out, and use apply"
        raise ValueError(msg)
    return fitted, measured, protocol


def apply(options: Namespace, calibrator: Calibrator) -> None:
    """Calibrate the scores of images; labels are not needed, and are kept as they are."""
    from refocal.calibrators import MultilabelCalibrator
    from refocal.cli.output import check_outputs, show
    from refocal.cli.progress import track
    from refocal.scale.parts import check_match

    source = find_source(options.files)
    if len(source.files) > 1:
        msg = f"apply takes one file of images, got {len(source.files)}"
        raise ValueError(msg)
    check_outputs(options, [options.calibrator, *source.files], allowed=_SUFFIXES)
    if isinstance(calibrator, MultilabelCalibrator):
        msg = "the calibrator is for multi-label scores, but a pixel has one class: use another calibrator"
        raise ValueError(msg)
    images = _open(options, source, labels=False)
    check_match(calibrator, source.name, input=images.input, columns=images.channels, what="classes")
    with track() as progress:
        progress.step(f"calibrating {source.name}")
        _write(options, calibrator, images)
    text = f"{images.count:,} images calibrated: {options.out}"
    show(options, text, {"images": images.count, "out": options.out})


def _open(options: Namespace, source: Source, *, labels: bool = True) -> ImageBatches:
    from refocal.cli.image_batches import ImageBatches
    from refocal.cli.inputs import choose_columns

    settings: dict[str, Any] = {"columns": choose_columns(options), **given(options, "axis")}
    return ImageBatches.open(source.files, labels=labels, most_bytes=options.memory, **settings)


def _layout(options: Namespace) -> dict[str, Any]:
    return given(options, "axis", "ignore_index")


def _write(options: Namespace, calibrator: Calibrator, images: ImageBatches) -> None:
    """Write calibrated probabilities, batch by batch; one channel stays one channel."""
    import numpy as np

    from refocal.predictions.images import write_images
    from refocal.segmentation import predict_proba

    axis = images.files[0].axis
    with write_images(options.out, images.files[0], overwrite=options.force) as write, images.naming():
        for scores, labels in images:
            probs = predict_proba(calibrator, scores, axis=axis)
            write(np.take(probs, [1], axis=axis) if images.channels == 1 else probs, labels)
