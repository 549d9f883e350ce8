"""What does a reliability diagram show?
=====================================

A reliability diagram sorts predictions into bins by confidence and draws, for each bin, how often they are right. On
the diagonal, confidence equals accuracy.
"""  # noqa: D205

# %%
# Fit to one part of the data, measure on another
# -----------------------------------------------
# The package ships with predictions of networks that were trained with focal loss on scikit-learn's digits. The split
# `val` is for fitting and `test` for measuring.

import matplotlib.pyplot as plt

import refocal
from refocal import demo
from refocal.report.figures import AFTER, BEFORE, draw_histogram, draw_reliability

val, test = demo.load().select("val"), demo.load().select("test")
selection = refocal.calibrate(val.scores, val.labels, method="temperature")
report = selection.report(test.scores, test.labels, by_class=False)

# %%
# Draw both
# ---------
# The gray band shows where the dots of a calibrated network would lie, given the number of samples in each bin. A
# filled dot is outside of it. The area of a dot grows with the number of samples.

figure, axes = plt.subplots(1, 2, figsize=(7, 3.8), layout="constrained", sharey=True)
for ax, method, color in zip(axes, (report.given, report.chosen), (BEFORE, AFTER), strict=True):
    draw_reliability(ax, method.diagram, color=color)
    ax.set(title=f"{method.title}: ECE {method.measures['ece'].value:.1%}")
plt.show()

# %%
# Before calibration, nearly all dots are above the diagonal: the network is right more often than it says. Temperature
# scaling divides the logits by one number, and most dots move into the band. The two outside of it have few samples.
# The histogram shows where the confidences went:

figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
draw_histogram(ax, report.given.histogram, report.chosen.histogram)
ax.legend(frameon=False, loc="upper left")
plt.show()
