"""Which threshold follows from the costs?
========================================

If acting costs 1 and a missed case costs 10, act if the probability exceeds 1 / 10. That is the cheapest threshold, but
only if the probability is right. Here it is wrong at first; after calibration it is right.
"""  # noqa: D205

# %%
# A classifier that exaggerates
# -----------------------------
# About one case in fourteen is positive. The classifier was trained with positives counted ten times, so its
# probabilities are too high. Half of the data are for fitting a calibrator, and half for counting costs.

import matplotlib.pyplot as plt
import numpy as np

from refocal.calibrators import PlattScaling

rng = np.random.default_rng(0)
true_log_odds = 2 * rng.standard_normal(20_000) - 4
labels = rng.random(20_000) < 1 / (1 + np.exp(-true_log_odds))
log_odds = true_log_odds + np.log(10)
fit, test = slice(0, 10_000), slice(10_000, None)

calibrator = PlattScaling().fit(log_odds[fit], labels[fit])
before = 1 / (1 + np.exp(-log_odds[test]))
after = calibrator.predict_proba(log_odds[test])[:, 1]

# %%
# Mean cost by threshold
# ----------------------
# Every case at or above the threshold costs `ACT`, and every positive below it costs `MISS`. The vertical line is the
# threshold that the costs imply.

ACT, MISS = 1, 10


def mean_cost(probs: np.ndarray, threshold: float) -> float:
    """What decisions by this threshold cost, per case."""
    acted = probs >= threshold
    return float(np.mean(ACT * acted + MISS * (labels[test] & ~acted)))


thresholds = np.linspace(0, 1, 201)
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for probs, color, name in (
    (before, "#b04a06", "before calibration"),
    (after, "#0a649f", "after calibration"),
):
    costs = [mean_cost(probs, threshold) for threshold in thresholds]
    ax.plot(thresholds, costs, color=color, linewidth=2, label=name)
    ax.plot(ACT / MISS, mean_cost(probs, ACT / MISS), "o", color=color, markersize=8)
ax.axvline(ACT / MISS, color="0.45", linewidth=1, linestyle="--", label="cost of acting / of a miss")
ax.set(xlabel="threshold", ylabel="mean cost per case", xlim=(0, 1), ylim=(0, 1.05))
ax.legend(frameon=False)
plt.show()

# %%
# Both curves reach the same lowest cost, because calibration does not change how cases rank. But after calibration, the
# cheapest threshold is where the costs say it is. Before, you would have to search for it whenever a cost changes.

assert mean_cost(after, ACT / MISS) < mean_cost(before, ACT / MISS)
