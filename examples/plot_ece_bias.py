"""Why is ECE never zero?
=======================

The expected calibration error (ECE) is the mean distance between confidence and accuracy over bins of confidence. Noise
makes every distance positive, so even a perfectly calibrated classifier has an ECE above 0. The fewer samples there
are, the larger it is.
"""  # noqa: D205

# %%
# A calibrated classifier
# -----------------------
# Labels are drawn from the predicted probabilities, so the true calibration error is 0. We measure ECE in samples of
# different sizes, 40 of each.

import matplotlib.pyplot as plt
import numpy as np

from refocal import metrics


def draw_sample(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Predicted probabilities of three classes, and labels drawn from them."""
    probs = rng.dirichlet([0.5, 0.5, 0.5], count)
    labels = (probs.cumsum(axis=1) < rng.random((count, 1))).sum(axis=1)
    return probs, np.minimum(labels, 2)


rng = np.random.default_rng(0)
counts = np.array([100, 300, 1_000, 3_000, 10_000, 30_000])
samples = [[draw_sample(count, rng) for _ in range(40)] for count in counts]
plain = np.array([[metrics.ece(*sample) for sample in group] for group in samples])
debiased = np.array([[metrics.ece(*sample, debias=True) for sample in group] for group in samples])

# %%
# ECE against the number of samples
# ---------------------------------
# The lines are means, and the bands hold nine of ten samples. With 100 samples, an ECE of 10% is no sign of
# miscalibration. The debiased ECE subtracts part of what noise adds, but not all of it.

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for values, color, name in ((plain, "#b04a06", "ECE"), (debiased, "#0a649f", "ECE, debiased")):
    low, high = np.quantile(values, [0.05, 0.95], axis=1)
    ax.fill_between(counts, low, high, color=color, alpha=0.2, linewidth=0)
    ax.plot(counts, values.mean(axis=1), color=color, linewidth=2, marker="o", label=name)
ax.axhline(0, color="0.45", linewidth=1, linestyle="--", label="true value")
ax.set(xscale="log", yticks=[0, 0.05, 0.1, 0.15])
ax.set(xlabel="number of samples", ylabel="ECE of a calibrated classifier")
ax.yaxis.set_major_formatter("{x:.0%}")
ax.legend(frameon=False)
plt.show()

# %%
# Use an interval
# ---------------
# `metrics.interval` gives limits that hold the true value in 95 of 100 samples. They correct for the noise. Here all of
# them begin at 0, so none of these samples speaks against the classifier.

first = [metrics.interval(metrics.ece, *group[0]) for group in samples]
figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
low, high = [each.low for each in first], [each.high for each in first]
ax.vlines(counts, low, high, color="#8db8d8", linewidth=7, label="95% limits")
ax.plot(counts, [each.value for each in first], "o", color="#b04a06", label="ECE of one sample")
ax.axhline(0, color="0.45", linewidth=1, linestyle="--", label="true value")
ax.set(xscale="log", xlabel="number of samples", ylabel="ECE")
ax.yaxis.set_major_formatter("{x:.0%}")
ax.legend(frameon=False)
plt.show()
