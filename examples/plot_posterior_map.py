"""How far is softmax from the posterior?
=======================================

A network that minimizes focal loss does not output p(y|x). Here the true posterior is known, so we can draw the
difference, and the map Ψ that removes it.
"""  # noqa: D205

# %%
# Three classes along a line
# --------------------------
# Each class is a normal distribution of one feature x, so p(y|x) follows from Bayes' rule.
# `refocal.minimizer` gives the softmax output at the minimum of focal loss, for a known posterior.

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm

import refocal

GAMMA = 3
x = np.linspace(-5, 5, 400)
densities = np.stack([norm.pdf(x, -2, 1), norm.pdf(x, 0, 0.8), norm.pdf(x, 2, 1.2)], axis=1)
posterior = densities / densities.sum(axis=1, keepdims=True)
softmax = refocal.minimizer(posterior, gamma=GAMMA)

colors = ["#b04a06", "#0a649f", "#3d7a2a"]
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for k, color in enumerate(colors):
    axes.plot(x, posterior[:, k], color=color, linewidth=2, label=f"class {k}, p(y|x)")
    axes.plot(x, softmax[:, k], color=color, linewidth=1.6, linestyle="--", label=f"class {k}, softmax")
axes.set(xlabel="feature x", ylabel="probability", title=f"At the minimum of focal loss, γ = {GAMMA}")
axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False)
plt.show()

# %%
# Solid and dashed curves cross at the same places, so the predicted classes are the right ones. Between these places,
# softmax is too unsure of them. `refocal.posterior` maps it back, without any data:

recovered = refocal.posterior(softmax, gamma=GAMMA)
assert np.allclose(recovered, posterior)

# %%
# The map by γ
# ------------
# The larger γ, the more a softmax score understates the probability. Cross-entropy, γ = 0, needs no correction. The
# curves are those of two classes.

top = np.linspace(0.5, 1, 200)
figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
for gamma, shade in zip((0, 1, 2, 3, 5), plt.get_cmap("viridis")(np.linspace(0.75, 0, 5)), strict=True):
    mapped = refocal.posterior(np.stack([top, 1 - top], axis=1), gamma=gamma)[:, 0]
    axes.plot(top, mapped, color=shade, linewidth=2, label=f"γ = {gamma}")
axes.set(xlabel="softmax score of the predicted class", ylabel="p(y|x) of that class")
axes.legend(frameon=False)
plt.show()
