"""Images with labels, and slow measures of them: loops over pixels."""

from __future__ import annotations

import math

import numpy as np

IGNORED = 255


def draw_images(count=3, classes=3, size=(6, 7), *, seed=0, power=2.0, ignored=0.2):
    """Draw logits (N, K, ...) that are too large by a factor, and labels (N, ...), some of them ignored."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, (count, classes, *size))
    logits[:, 0] += 4  # one class prevails, so that some pixels are far from all boundaries
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    labels[rng.random(labels.shape) < ignored] = IGNORED
    return power * logits, labels


def slow_band(labels, distance, ignore_index=None):
    """Compare each pixel with each pixel of its image."""
    band = np.zeros(labels.shape, dtype=bool)
    for image, *place in np.ndindex(labels.shape):
        own = labels[(image, *place)]
        for other in np.ndindex(labels.shape[1:]):
            label = labels[(image, *other)]
            near = max(abs(a - b) for a, b in zip(place, other, strict=True)) <= distance
            if near and own != label and ignore_index not in (own, label):
                band[(image, *place)] = True
    return band


def slow_measures(logits, labels, chosen, *, bins=15):
    """Measure the chosen pixels one by one: the value of each field of `RegionCalibration` with an interval."""
    sums = dict.fromkeys(("nll", "brier", "accuracy", "overconfidence"), 0.0)
    gaps, pixels = [0.0] * bins, 0
    for image, *place in zip(*np.nonzero(chosen), strict=True):
        label = int(labels[(image, *place)])
        scores = [float(value) for value in logits[(image, slice(None), *place)]]
        odds = [math.exp(score - max(scores)) for score in scores]
        probs = [value / sum(odds) for value in odds]
        top = probs.index(max(probs))
        pixels += 1
        sums["nll"] -= math.log(probs[label])
        sums["brier"] += sum((p - (k == label)) ** 2 for k, p in enumerate(probs))
        sums["accuracy"] += top == label
        sums["overconfidence"] += probs[top] - (top == label)
        gaps[min(bins - 1, max(0, math.ceil(probs[top] * bins) - 1))] += probs[top] - (top == label)
    return {name: total / pixels for name, total in sums.items()} | {"ece": sum(map(abs, gaps)) / pixels}
