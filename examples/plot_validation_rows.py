"""How many validation rows does a calibrator need?
=================================================

The closed-form posterior of focal loss needs no data. Calibrators do, but they also correct what training got wrong.
Where is the break-even point?
"""  # noqa: D205

# %%
# Fit to fewer and more rows
# --------------------------
# The predictions that ship with the package come from networks trained with focal loss, γ = 3, on digits. Each
# calibrator is fitted to random subsets of the validation rows, ten of each size, and measured on the same test rows.

import matplotlib.pyplot as plt
import numpy as np

import refocal
from refocal import demo, metrics
from refocal.calibrators import FocalTemperatureScaling, IsotonicCalibration, TemperatureScaling

val, test = demo.load().select("val"), demo.load().select("test")
rng = np.random.default_rng(0)
sizes = (10, 20, 50, 100, 200, 500)
calibrators = {
    "temperature scaling, 1 number": TemperatureScaling(classes=10),
    "focal temperature scaling, 2 numbers": FocalTemperatureScaling(classes=10),
    "isotonic calibration of each class": IsotonicCalibration(classes=10),
}
nll = {name: np.empty((len(sizes), 10)) for name in calibrators}
for row, size in enumerate(sizes):
    for column in range(10):
        chosen = rng.choice(len(val), size, replace=False)
        for name, calibrator in calibrators.items():
            fitted = calibrator.fit(val.scores[chosen], val.labels[chosen])
            nll[name][row, column] = metrics.nll(fitted.predict_proba(test.scores), test.labels)

# %%
# Log loss on the test rows
# -------------------------
# Lower is better. Lines are medians of ten subsets, and bands reach from the lowest to the highest value.

figure, ax = plt.subplots(figsize=(7, 4.4), layout="constrained")
for (name, values), color in zip(nll.items(), ("#0a649f", "#3d7a2a", "#7a4a9e"), strict=True):
    highest = np.minimum(values.max(axis=1), 2)  # the loss can be infinite
    ax.fill_between(sizes, values.min(axis=1), highest, color=color, alpha=0.15, linewidth=0)
    ax.plot(sizes, np.median(values, axis=1), color=color, linewidth=2, marker="o", label=name)
softmax = metrics.nll(test.scores, test.labels, input="logits")
posterior = metrics.nll(refocal.posterior_from_logits(test.scores, gamma=demo.GAMMA), test.labels)
ax.axhline(softmax, color="0.45", linewidth=1.5, linestyle=":", label="softmax, no data")
ax.axhline(posterior, color="#b04a06", linewidth=2, linestyle="--", label="posterior map, no data")
ax.set(xscale="log", xticks=sizes, xticklabels=map(str, sizes), ylim=(0.3, 0.75))
ax.set(xlabel="validation rows", ylabel="log loss on test rows")
ax.minorticks_off()
ax.legend(frameon=False)
plt.show()

# %%
# Here the break-even point is at 20 to 50 rows for one or two numbers, and beyond 500 for a function per class. With
# ten rows, four of the ten subsets have no wrong prediction. The best temperature for such rows is 0, which stands for
# certainty, and a wrong test row then has an infinite loss. A network that has overfitted is another matter: its
# posterior can be worse than its softmax, and a few rows for a calibrator are worth more than the map.
