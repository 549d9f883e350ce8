"""What are the scores of boosted trees with focal loss?
======================================================

LightGBM takes focal loss as a custom objective, and then returns raw scores. Their sigmoid is not p(y|x): focal loss
pulls it toward one half. The map of the loss gives p(y|x). This example needs the extra `boosting`.
"""  # noqa: D205

# %%
# Data with a known truth
# -----------------------
# About one row in nine is positive, and we know the probability of each.

import lightgbm
import matplotlib.pyplot as plt
import numpy as np

from refocal import metrics
from refocal.boosting import BinaryFocal

rng = np.random.default_rng(0)
features = rng.uniform(-2, 2, (30_000, 2))
truth = 1 / (1 + np.exp(3 - features[:, 0] - features[:, 0] * features[:, 1]))
labels = (rng.random(30_000) < truth).astype(int)
train, test = slice(0, 15_000), slice(15_000, None)

# %%
# Train with focal loss
# ---------------------
# `BinaryFocal` has the objective. Boosting starts at the score that fits the frequency of positives, and `posterior`
# needs to know it.

focal = BinaryFocal(gamma=2)
start = focal.starting_score(labels[train])
data = lightgbm.Dataset(features[train], labels[train], init_score=np.full(15_000, start))
settings = {"objective": focal.lightgbm.objective, "learning_rate": 0.05, "num_leaves": 15}
settings |= {"verbosity": -1, "seed": 0, "num_threads": 1}
model = lightgbm.train(settings, data, num_boost_round=120)

sigmoid = 1 / (1 + np.exp(-(model.predict(features[test]) + start)))
posterior = focal.lightgbm.posterior(model, features[test], starting_score=start)

# %%
# Against the truth
# -----------------
# Each dot is one of 3,000 test rows. On the diagonal, a number equals the true probability.

figure, axes = plt.subplots(1, 2, figsize=(7, 3.9), layout="constrained", sharey=True)
for ax, probs, color, name in (
    (axes[0], sigmoid, "#b04a06", "sigmoid of the score"),
    (axes[1], posterior, "#0a649f", "posterior"),
):
    ece = metrics.ece(probs, labels[test], task="binary")
    ax.scatter(truth[test][:3_000], probs[:3_000], s=6, color=color, alpha=0.25, linewidths=0)
    ax.plot([0, 1], [0, 1], color="0.3", linewidth=1, linestyle="--")
    ax.set(title=f"{name}: ECE {ece:.1%}", aspect="equal", xlim=(0, 1), ylim=(0, 1))
    ax.set(xlabel="true probability", ylabel="predicted probability")
plt.show()

# %%
# The sigmoid is too high for improbable events and too low for probable ones. The posterior scatters around the
# diagonal; what is left is the error of the trees. Both rank the rows alike, so a measure of ranking such as AUC would
# not show the difference.
