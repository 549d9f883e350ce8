"""Training losses in JAX: pure functions with one value per example, for `jit`, `grad`, `vmap` and any optimizer.

| to train with | choose |
|---|---|
| cross-entropy that focuses on hard examples | `focal_loss` |
| the same for detection, multi-label or binary tasks | `sigmoid_focal_loss` |
| the focus of focal loss, with the softmax as posterior | `proper_focal_loss` |

They have the formulas of `refocal.losses`. `refocal.posterior_from_logits` and `refocal.sigmoid_posterior` take JAX
arrays and recover p(y|x) from the logits of the trained network.
"""

from refocal._extras import require

require("jax", extra="jax", user="refocal.jax")

from refocal.jax.focal import focal_loss  # noqa: E402
from refocal.jax.proper_focal import proper_focal_loss  # noqa: E402
from refocal.jax.sigmoid_focal import sigmoid_focal_loss  # noqa: E402

__all__ = ["focal_loss", "proper_focal_loss", "sigmoid_focal_loss"]
