"""What the commands do with the boxes of a detector: COCO results and annotations."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refocal.cli.data_sets import given
from refocal.cli.options import add_option, list_named_columns

if TYPE_CHECKING:
    from refocal.calibrators import Calibrator
    from refocal.detection import Annotations, DetectionReport, Detections

_PER_BYTE = 12  # bytes of memory per byte of JSON, measured and rounded up
_SUFFIXES = {"save": (".json",), "out": (".json",), "report": (".html", ".json")}
_FLAGS = {"iou": "--iou", "min_score": "--min-score", "test_annotations": "--test-annotations"}


def add_options(command: Any, *, owner: str) -> Any:
    """Add --annotations, --iou and --min-score; returns their group. For the owner see `add_option`."""
    group = command.add_argument_group("boxes of a detector", "COCO results, with the annotations of their images")
    group.add_argument("--annotations", metavar="FILE", help="COCO annotations; FILE is then COCO results")
    add_option(group, "--iou", type=float, owner=owner, help="least IoU of a right box")
    add_option(
        group,
        "--min-score",
        type=float,
        metavar="SCORE",
        owner=owner,
        help="leave out boxes with lower scores; a calibrator is valid for scores from SCORE on: apply it to those "
        "boxes only",
    )
    return group


def are_boxes(files: Sequence[str]) -> bool:
    """Whether files are COCO results, by their names."""
    return any(file.lower().endswith(".json") for file in files)


def are_asked_for(options: Namespace, files: Sequence[str]) -> bool:
    """Whether a command is about boxes; options and files that say different things are rejected."""
    if options.annotations is not None:
        _reject_options(options)
        return True
    for name, flag in _FLAGS.items():
        if getattr(options, name, None) is not None:
            msg = f"{flag} is only for the boxes of a detector, with --annotations"
            raise ValueError(msg)
    if are_boxes(files):
        msg = "files that end in .json are boxes of a detector, COCO results: add --annotations"
        raise ValueError(msg)
    return False


def evaluate(options: Namespace) -> None:
    """Measure boxes, each file separately."""
    from rich.console import Group

    from refocal import detection
    from refocal.cli.output import check_outputs, show
    from refocal.cli.progress import track
    from refocal.detection.table import build_detection_table

    _reject_seed(options, "evaluate draws nothing from the boxes of a detector")
    check_outputs(options, [*options.files, options.annotations], allowed=_SUFFIXES)
    if options.report and len(options.files) > 1:
        msg = f"--report takes one file, got {len(options.files)}"
        raise ValueError(msg)
    _check_memory(options, [*options.files, options.annotations])
    with track() as progress:
        progress.step(f"reading {Path(options.annotations).name}")
        truth = detection.Annotations.read(options.annotations)
        found = []
        for file in options.files:
            progress.step(f"measuring {Path(file).name}")
            found.append(detection.evaluate(file, truth, **given(options, "iou", "min_score")))
    if options.report:
        found[0] = _record_command(options, found[0])
        found[0].save(options.report, overwrite=options.force)
    contents = [json.loads(each.to_json()) for each in found]
    tables = Group(*map(build_detection_table, found))
    show(options, tables, contents[0] if len(contents) == 1 else {"files": contents, "paired": []})


def calibrate(options: Namespace, settings: dict[str, Any]) -> None:
    """Fit calibrators to boxes, and measure them on other images."""
    import numpy as np

    from refocal import detection
    from refocal.cli.output import check_outputs, show, show_line
    from refocal.cli.progress import track
    from refocal.detection.evaluation import select_and_match
    from refocal.detection.table import build_detection_table

    if options.test_annotations is not None and options.test is None:
        msg = "--test-annotations is only for --test"
        raise ValueError(msg)
    if options.test is not None:
        _reject_seed(options, "with --test, no images are chosen at random")
        if Path(options.test).exists() and Path(options.test).samefile(options.val):
            msg = f"--test must not be the file that calibrators are fitted to, got {options.test}: leave out --test"
            raise ValueError(msg)
    files = [options.val, options.annotations, *filter(None, [options.test, options.test_annotations])]
    check_outputs(options, files, allowed=_SUFFIXES)
    _check_memory(options, files)
    settings = given(options, "iou", "min_score") | _read_alpha(settings)
    with track() as progress:
        progress.step(f"reading {Path(options.val).name}")
        val = detection.Detections.read(options.val)
        truth = detection.Annotations.read(options.annotations)
        if options.test is not None:
            test = detection.Detections.read(options.test)
            others, protocol = _find_test_truth(options, val, truth, test)
            calibration = detection.calibrate(val, truth, progress=progress.step, **settings)
            test = test.select(np.flatnonzero(test.scores >= calibration.min_score))
            matches = select_and_match(test, others, iou=calibration.iou, min_score=calibration.min_score)
            report = calibration.measure(matches, protocol=protocol, progress=progress.step)
            scores = calibration.predict(test.scores)
        else:
            divided = given(options, "seed") | {"progress": progress.step} | settings
            calibration, report, test, scores = (
                detection.cross_calibrate(val, truth, **divided)
                if options.holdout is None
                else detection.hold_out(val, truth, share=options.holdout, **divided)
            )
    report = _record_command(options, report)
    written = {}
    if options.save:
        calibration.save(options.save, overwrite=options.force)
        written["calibrator"] = options.save
    if options.out:
        test.write(options.out, scores, overwrite=options.force)
        written["predictions"] = options.out
    if options.report:
        report.save(options.report, overwrite=options.force)
        written["report"] = options.report
    show(options, build_detection_table(report), {**json.loads(report.to_json()), "written": written})
    if not options.json:
        for what, where in written.items():
            show_line(f"{what}: {where}")


def apply(options: Namespace, calibrator: Calibrator) -> None:
    """Calibrate the scores of boxes; annotations are not needed."""
    from refocal import detection
    from refocal.cli.output import check_outputs, show

    _reject_options(options)
    if len(options.files) > 1:
        msg = f"apply takes one file of boxes, got {len(options.files)}"
        raise ValueError(msg)
    check_outputs(options, [options.calibrator, *options.files], allowed=_SUFFIXES)
    _check_memory(options, options.files)
    boxes = detection.Detections.read(options.files[0])
    boxes.write(options.out, detection.apply(calibrator, boxes.scores), overwrite=options.force)
    show(options, f"{len(boxes):,} boxes calibrated: {options.out}", {"rows": len(boxes), "out": options.out})


def _reject_options(options: Namespace) -> None:
    """Reject, before any work, what the boxes of a detector do not support."""
    named = list_named_columns(options)
    flags = [
        f"--{name}" for name in ("task", "split", "slice", "costs", "sets", "engine") if getattr(options, name, None)
    ]
    if found := next(iter([*named[:1], *flags]), None):
        msg = f"{found} does not work with the boxes of a detector: leave it out"
        raise ValueError(msg)


def _read_alpha(settings: dict[str, Any]) -> dict[str, Any]:
    """Turn the weights of two classes back into alpha: boxes have one score each, a sigmoid."""
    weight = settings.pop("weight", None)
    if weight is not None:
        if not isinstance(weight, list) or len(weight) != 2 or not all(map(_is_positive, weight)):
            msg = (
                "weight in --loss must be two positive numbers for boxes, those of wrong and right boxes, got "
                f"{weight!r:.80}; or use --loss sigmoid-focal --gamma G --alpha A"
            )
            raise ValueError(msg)
        settings["alpha"] = weight[1] / sum(weight)
    unknown = {"label_smoothing", "detached"} & set(settings)
    if unknown:
        msg = f"--loss of a detector takes gamma and alpha only, got {min(unknown)}: use --loss sigmoid-focal"
        raise ValueError(msg)
    return settings


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def _reject_seed(options: Namespace, why: str) -> None:
    if options.seed is not None:
        msg = f"--seed has no effect: {why}; leave it out"
        raise ValueError(msg)


def _find_test_truth(
    options: Namespace, val: Detections, truth: Annotations, test: Detections
) -> tuple[Annotations, str]:
    """Find the annotations of the test images, and a sentence that says which images count."""
    from refocal import detection

    if options.test_annotations is not None:
        others = detection.Annotations.read(options.test_annotations)
        if not _are_same(truth, others):
            return others, ""
    _check_images(val, test)
    return truth.select(test.image_ids), f"Only images with boxes in {test.name} count."


def _are_same(first: Annotations, second: Annotations) -> bool:
    """Whether annotations are about the same objects; equal ids alone may be those of different images."""
    same_images = (first.image_ids, first.object_images) == (second.image_ids, second.object_images)
    return same_images and bool((first.boxes == second.boxes).all())


def _check_images(val: Detections, test: Detections) -> None:
    """Reject test boxes of images that calibrators are fitted to."""
    shared = set(val.image_ids) & set(test.image_ids)
    if shared:
        msg = (
            f"{val.name} and {test.name} must hold boxes of different images, both have image {min(map(str, shared))}: "
            "without --test, each image is measured by fits to other images"
        )
        raise ValueError(msg)


def _check_memory(options: Namespace, files: Sequence[str]) -> None:
    from refocal.cli.memory import format_size

    need = _PER_BYTE * sum(Path(file).stat().st_size for file in files)
    if need > options.memory:
        msg = (
            f"boxes must be in memory, but {' and '.join(files)} would take about {format_size(need)}, more than "
            f"--memory {format_size(options.memory)}: raise it, or give fewer images"
        )
        raise ValueError(msg)


def _record_command(options: Namespace, found: DetectionReport) -> DetectionReport:
    from dataclasses import replace

    from refocal.cli.workflow import record_command

    return replace(found, report=record_command(options, found.report))
