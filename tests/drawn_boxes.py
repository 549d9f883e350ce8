"""Images with drawn objects, and boxes of a detector whose scores are what we say: no network is needed."""

from __future__ import annotations

import json

import numpy as np

NAMES = ("cat", "dog", "bird")


def draw_truth(rng, *, images=60, categories=3, most=4, crowds=0.1, ignored=0.0):
    """Annotations of random boxes; some images are empty."""
    objects = []
    for image in range(images):
        for _ in range(rng.integers(0, most + 1)):
            left, top = rng.integers(0, 60, 2).tolist()
            width, height = rng.integers(8, 40, 2).tolist()
            objects.append(
                {
                    "id": len(objects) + 1,
                    "image_id": image,
                    "category_id": int(rng.integers(1, categories + 1)),
                    "bbox": [left, top, width, height],
                    "area": width * height,
                    "iscrowd": int(rng.random() < crowds),
                }
            )
            if ignored:
                objects[-1]["ignore"] = int(rng.random() < ignored)
    return {
        "images": [{"id": image, "file_name": f"{image}.png"} for image in range(images)],
        "annotations": objects,
        "categories": [{"id": each, "name": NAMES[each - 1]} for each in range(1, categories + 1)],
    }


def draw_boxes(rng, truth, wrong=2, decimals=1):
    """Boxes near the objects and anywhere else; scores are rounded, so that many are equal."""
    boxes = []
    categories = [each["id"] for each in truth["categories"]]

    def add(image, category, box):
        score = round(float(rng.random()), decimals)
        boxes.append({"image_id": image, "category_id": category, "bbox": box, "score": score, "area": box[2] * box[3]})

    for each in truth["annotations"]:
        for _ in range(rng.integers(0, 4)):  # duplicates compete for an object
            moved = np.array(each["bbox"]) + rng.integers(-4, 5, 4) * int(rng.random() < 0.8)
            add(each["image_id"], each["category_id"], np.maximum(moved, [-99, -99, 0, 0]).tolist())
    for image in truth["images"]:
        for _ in range(rng.integers(0, wrong + 1)):
            box = [*rng.integers(0, 60, 2).tolist(), *rng.integers(0, 40, 2).tolist()]
            add(image["id"], int(rng.choice(categories)), box)
    return boxes


def draw_scored(rng, images=300, power=1.0, per_image=4, categories=3):
    """Boxes that are right with probability p and have the score p**power; IoU is 0.8 for right boxes.

    Returns results and annotations. The boxes of an image lie side by side, so each has at most one object.
    """
    boxes, objects = [], []
    for image in range(images):
        for place in range(per_image):
            chance = float(rng.random())
            category = int(rng.integers(1, categories + 1))
            own = {"image_id": image, "category_id": category}
            boxes.append({**own, "bbox": [20 * place, 0, 10, 8], "score": chance**power})
            if rng.random() < chance:
                objects.append({**own, "id": len(objects) + 1, "bbox": [20 * place, 0, 10, 10]})
    truth = {
        "images": [{"id": image} for image in range(images)],
        "annotations": objects,
        "categories": [{"id": each, "name": NAMES[each - 1]} for each in range(1, categories + 1)],
    }
    return boxes, truth


def write(path, document):
    """Write JSON."""
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)
