"""Segmentation: calibration of the pixels of images, with intervals that treat an image as the sample.

Scores have shape (N, K, H, W) with the classes on `axis` 1, or any other number of spatial axes; labels (N, H, W) may
hold an `ignore_index`. `SegmentationCalibration` measures batch by batch, `fit` fits a calibrator to batches,
`calibrate` fits several and chooses one, `predict_proba` applies one, and `to_rows` makes rows of pixels for everything
else. The commands take npz files of images.
"""

from typing import TYPE_CHECKING

from refocal._lazy import lazy_names

if TYPE_CHECKING:
    from refocal.segmentation.boundary import boundary_band
    from refocal.segmentation.calibration import SegmentationCalibration
    from refocal.segmentation.comparison import MeasuredMethod, SegmentationComparison
    from refocal.segmentation.fitting import fit
    from refocal.segmentation.pixels import PixelRows, predict_proba, to_rows
    from refocal.segmentation.selection import SegmentationSelection, calibrate
    from refocal.segmentation.summary import ClassCalibration, RegionCalibration, SegmentationSummary

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "boundary": ("boundary_band",),
        "calibration": ("SegmentationCalibration",),
        "comparison": ("MeasuredMethod", "SegmentationComparison"),
        "fitting": ("fit",),
        "pixels": ("PixelRows", "predict_proba", "to_rows"),
        "selection": ("SegmentationSelection", "calibrate"),
        "summary": ("ClassCalibration", "RegionCalibration", "SegmentationSummary"),
    },
)

__all__ = [
    "ClassCalibration",
    "MeasuredMethod",
    "PixelRows",
    "RegionCalibration",
    "SegmentationCalibration",
    "SegmentationComparison",
    "SegmentationSelection",
    "SegmentationSummary",
    "boundary_band",
    "calibrate",
    "fit",
    "predict_proba",
    "to_rows",
]
