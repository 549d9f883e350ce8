"""How many classes does a 95% prediction set need?
=================================================

A prediction set is a set of classes that contains the true class with a probability that you choose. Wrong
probabilities do not break that promise, but they can make the sets larger.
"""  # noqa: D205

# %%
# An overconfident classifier
# ---------------------------
# Twenty classes. Each class is exaggerated in its own way, as after training with class weights. 5,000 rows are for
# fitting and 10,000 for measuring.

import matplotlib.pyplot as plt
import numpy as np

from refocal.calibrators import VectorScaling
from refocal.conformal import PredictionSets

rng = np.random.default_rng(0)
true_logits = 2.5 * rng.standard_normal((15_000, 20))
labels = np.argmax(true_logits + rng.gumbel(size=true_logits.shape), axis=1)
logits = true_logits * rng.uniform(0.5, 2, 20) + rng.normal(0, 2, 20)
fit, test = slice(0, 5_000), slice(5_000, None)

# %%
# Sets before and after calibration
# ---------------------------------
# Both cover about 95% of the test rows. The share is not exact, because the threshold comes from a finite sample. The
# calibrated sets are smaller.

figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
sizes = np.arange(1, 21)
for calibrator, color, name, shift in (
    (None, "#b04a06", "softmax", -0.2),
    (VectorScaling(), "#0a649f", "vector scaling", 0.2),
):
    sets = PredictionSets(coverage=0.95, calibrator=calibrator).fit(logits[fit], labels[fit])
    found = sets.predict_set(logits[test])
    covered = found[np.arange(len(found)), labels[test]].mean()
    share = [(found.sum(axis=1) == size).mean() for size in sizes]
    text = f"{name}: {found.sum(axis=1).mean():.1f} classes, coverage {covered:.1%}"
    ax.bar(sizes + shift, share, width=0.4, color=color, label=text)
ax.set(xlabel="number of classes in the set", ylabel="share of rows", xticks=[1, 5, 10, 15, 20])
ax.yaxis.set_major_formatter("{x:.0%}")
ax.legend(frameon=False)
plt.show()

# %%
# Coverage by choice
# ------------------
# At every level, sets cover about the share of rows that you ask for, with or without calibration. A higher level costs
# more classes.

levels = np.array([0.8, 0.85, 0.9, 0.95, 0.98, 0.99])
figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3.4), layout="constrained")
for calibrator, color, name in (
    (None, "#b04a06", "softmax"),
    (VectorScaling(), "#0a649f", "vector scaling"),
):
    unfitted = [PredictionSets(coverage=level, calibrator=calibrator) for level in levels]
    found = [sets.fit(logits[fit], labels[fit]).predict_set(logits[test]) for sets in unfitted]
    covered = [each[np.arange(len(each)), labels[test]].mean() for each in found]
    left.plot(levels, covered, "o-", color=color, label=name)
    right.plot(levels, [each.sum(axis=1).mean() for each in found], "o-", color=color, label=name)
left.plot(levels, levels, color="0.45", linestyle="--", linewidth=1, label="as asked for")
left.set(xlabel="coverage asked for", ylabel="coverage on test rows", yticks=[0.8, 0.85, 0.9, 0.95, 1])
right.set(xlabel="coverage asked for", ylabel="mean number of classes")
left.legend(frameon=False)
for axis in (left.xaxis, left.yaxis, right.xaxis):
    axis.set_major_formatter("{x:.0%}")
plt.show()
