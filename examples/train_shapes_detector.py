"""Train a small detector with sigmoid focal loss, and see what its scores are worth.

The images are 32 x 32 with one to three squares, disks and triangles in noise. The detector is a convolutional network
without anchors: each cell of an 8 x 8 grid gives one logit per shape and one box. The cell in which the center of an
object lies is its positive. The class loss is the one of RetinaNet, gamma = 2 and alpha = 0.25.

    python examples/train_shapes_detector.py FOLDER

writes val.json and test.json (COCO results), instances_val.json and instances_test.json (COCO annotations) to FOLDER,
and prints D-ECE of the scores, of their closed-form posterior and of a calibrator that was fitted to val.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from refocal import detection
from refocal.losses import SigmoidFocalLoss

SIZE, STRIDE = 32, 4
CELLS = SIZE // STRIDE
SHAPES = ("square", "disk", "triangle")
GAMMA, ALPHA = 2, 0.25
LEAST_SCORE = 0.05  # boxes with lower scores are not written
SUPPRESSED = 0.5  # of boxes of one shape that overlap by more, the best is kept


def draw_images(rng: np.random.Generator, count: int) -> tuple[np.ndarray, list[list[tuple[int, np.ndarray]]]]:
    """Draw images (count, 32, 32), and the shape and box (left, top, width, height) of each object."""
    images = 0.35 * rng.standard_normal((count, SIZE, SIZE))
    y, x = np.mgrid[:SIZE, :SIZE] + 0.5
    objects: list[list[tuple[int, np.ndarray]]] = []
    for pixels in images:
        own = []
        for _ in range(rng.integers(1, 4)):
            side = float(rng.uniform(6, 13))
            left, top = rng.uniform(0, SIZE - side, 2)
            shape = int(rng.integers(len(SHAPES)))
            u, v = (x - left) / side, (y - top) / side
            inside = (u > 0) & (u < 1) & (v > 0) & (v < 1)
            if shape == 1:
                inside = (u - 0.5) ** 2 + (v - 0.5) ** 2 < 0.25
            elif shape == 2:
                inside &= np.abs(u - 0.5) < v / 2
            pixels += inside * rng.uniform(0.3, 1.0)  # noqa: PLW2901 in place
            own.append((shape, np.array([left, top, side, side])))
        objects.append(own)
    return images.astype(np.float32), objects


def assign(objects: list[list[tuple[int, np.ndarray]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets of each cell: whether a shape has its center there (N, 3, 8, 8), and its box (N, 4, 8, 8)."""
    classes = torch.zeros(len(objects), len(SHAPES), CELLS, CELLS)
    boxes = torch.zeros(len(objects), 4, CELLS, CELLS)
    for number, own in enumerate(objects):
        for shape, (left, top, width, height) in own:
            row, column = int((top + height / 2) // STRIDE), int((left + width / 2) // STRIDE)
            classes[number, :, row, column] = 0
            classes[number, shape, row, column] = 1
            boxes[number, :, row, column] = torch.tensor([left, top, width, height])
    return classes, boxes


class Detector(nn.Module):
    """Images (N, 32, 32) to class logits (N, 3, 8, 8) and boxes (N, 4, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        widths, layers = (1, 16, 32, 32, 32), []
        for width, wider, stride in zip(widths, widths[1:], (2, 2, 1, 1), strict=False):
            layers += [nn.Conv2d(width, wider, 3, stride, 1), nn.BatchNorm2d(wider), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.classes = nn.Conv2d(widths[-1], len(SHAPES), 3, padding=1)
        self.boxes = nn.Conv2d(widths[-1], 4, 3, padding=1)
        nn.init.constant_(self.classes.bias, -2.0)
        centers = STRIDE * (torch.arange(CELLS) + 0.5)
        self.register_buffer("places", torch.stack(torch.meshgrid(centers, centers, indexing="xy")))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Find logits and boxes."""
        found = self.body(images[:, None])
        raw = self.boxes(found)
        sides = 10 * torch.exp(raw[:, 2:].clamp(-2, 2))
        corners = self.places + STRIDE * raw[:, :2] - sides / 2
        return self.classes(found), torch.cat([corners, sides], dim=1)


def train(seed: int = 0, images: int = 4000, steps: int = 500) -> Detector:
    """Train on drawn images; a few hundred steps bring the loss near its minimum."""
    torch.manual_seed(seed)
    pixels, objects = draw_images(np.random.default_rng(seed), images)
    inputs, (classes, boxes) = torch.from_numpy(pixels), assign(objects)
    detector = Detector()
    criterion = SigmoidFocalLoss(gamma=GAMMA, alpha=ALPHA, reduction="sum")
    optimizer = torch.optim.AdamW(detector.parameters(), lr=3e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    for _ in range(steps):
        batch = torch.randint(images, (64,))
        logits, found = detector(inputs[batch])
        is_object = classes[batch].amax(dim=1, keepdim=True)
        error = (is_object * (found - boxes[batch]).abs()).sum() / STRIDE
        loss = (criterion(logits, classes[batch]) + 0.2 * error) / is_object.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return detector.eval()


@torch.no_grad()
def detect(detector: Detector, pixels: np.ndarray) -> list[dict[str, object]]:
    """Find boxes: COCO results, with the sigmoid as the score, as detectors write them."""
    logits, boxes = detector(torch.from_numpy(pixels))
    scores = torch.sigmoid(logits).flatten(2).numpy()
    places = boxes.flatten(2).transpose(1, 2).numpy().astype(np.float64)
    results = []
    for image in range(len(pixels)):
        for shape in range(len(SHAPES)):
            own = scores[image, shape]
            for cell in suppress(places[image], own):
                box = places[image, cell].round(2).tolist()
                score = float(own[cell])
                results.append({"image_id": image, "category_id": shape + 1, "bbox": box, "score": score})
    return results


def suppress(boxes: np.ndarray, scores: np.ndarray) -> list[int]:
    """Keep the best of boxes that overlap."""
    kept: list[int] = []
    for cell in np.argsort(-scores):
        if scores[cell] < LEAST_SCORE:
            break
        overlaps = detection.measure_overlaps(boxes[[cell]], boxes[kept], np.zeros(len(kept), dtype=bool))
        if not (overlaps > SUPPRESSED).any():
            kept.append(int(cell))
    return kept


def annotate(objects: list[list[tuple[int, np.ndarray]]]) -> dict[str, object]:
    """Write the objects as COCO annotations."""
    flat = [(image, shape, box) for image, own in enumerate(objects) for shape, box in own]
    return {
        "images": [{"id": image, "width": SIZE, "height": SIZE} for image in range(len(objects))],
        "categories": [{"id": number, "name": name} for number, name in enumerate(SHAPES, start=1)],
        "annotations": [
            {"id": number, "image_id": image, "category_id": shape + 1, "bbox": box.tolist(), "iscrowd": 0}
            for number, (image, shape, box) in enumerate(flat, start=1)
        ],
    }


def write_detections(detector: Detector, folder: Path, *, images: int = 600) -> None:
    """Write the COCO results and annotations of two sets of new images, val and test."""
    for seed, part in enumerate(("val", "test"), start=1):
        pixels, objects = draw_images(np.random.default_rng(seed), images)
        (folder / f"{part}.json").write_text(json.dumps(detect(detector, pixels)), encoding="utf-8")
        (folder / f"instances_{part}.json").write_text(json.dumps(annotate(objects)), encoding="utf-8")


def main(folder: Path) -> None:
    """Train, detect, calibrate and measure."""
    write_detections(train(), folder)
    calibration = detection.calibrate(folder / "val.json", folder / "instances_val.json", gamma=GAMMA, alpha=ALPHA)
    report = calibration.report(folder / "test.json", folder / "instances_test.json")
    sys.stdout.write(f"{report}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
