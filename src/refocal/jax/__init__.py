"""Training losses in JAX: pure functions with one value per example, for `jit`, `grad`, `vmap` and any optimizer.

| to train with | choose |
|---|---|
| cross-entropy that focuses on hard examples | `focal_loss` |
| the same for detection, multi-label or binary tasks | `sigmoid_focal_loss` |
| the focus of focal loss, with the softmax as posterior | `proper_focal_loss` |

They have the formulas of `refocal.losses`. `refocal.posterior_from_logits` and `refocal.sigmoid_posterior` take JAX
arrays and recover p(y|x) from the logits of the trained network.
"""

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    _MESSAGE = "refocal.jax needs JAX: pip install 'refocal[jax]'"
    raise ModuleNotFoundError(_MESSAGE, name="jax") from error

from refocal.jax.focal import focal_loss
from refocal.jax.proper_focal import proper_focal_loss
from refocal.jax.sigmoid_focal import sigmoid_focal_loss

__all__ = ["focal_loss", "proper_focal_loss", "sigmoid_focal_loss"]
