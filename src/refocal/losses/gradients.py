"""How strongly a loss pulls: the factor against cross-entropy, and gradient norms of the last layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from refocal.losses.rows import check_tensors
from refocal.maps.focal import phi


def gradient_factor(p: Tensor, *, gamma: Any) -> Tensor:
    """g(p, gamma): the gradient of focal loss divided by that of cross-entropy, for true-class probability p.

    g = (1 - p)^gamma - gamma p (1 - p)^(gamma - 1) log p, the same function as `refocal.phi`.

    Args:
        p: Probabilities of the true class.
        gamma: Focusing parameter > -1.

    Returns:
        Array like `p`.

    Example:
        >>> [round(g, 3) for g in gradient_factor(torch.tensor([0.1, 0.9]), gamma=3.0).tolist()]
        [1.289, 0.004]

    Reference: 002, Prop. 1.
    """
    return phi(p, gamma=gamma)


def last_layer_gradient_norms(
    loss: Callable[[Tensor, Tensor], Tensor], features: Tensor, logits: Tensor, target: Tensor, *, bias: bool = True
) -> Tensor:
    """Norm of each sample's gradient with respect to a last linear layer, without forming the gradients.

    The gradient of sample i in the weights is the outer product of dL_i/dz_i and its features h_i, so its norm is
    |dL_i/dz_i| |h_i|; a bias adds one to |h_i|^2.

    Args:
        loss: Loss of (logits, target), one value per sample; of a module, with `reduction="none"`.
        features: Input of the last layer (N, D).
        logits: Its output (N, K).
        target: What `loss` takes.
        bias: Whether the layer has a bias.

    Returns:
        Norms (N,).

    Example:
        >>> import functools
        >>> from refocal.losses import focal_loss
        >>> features, logits = torch.ones(1, 3), torch.zeros(1, 2)
        >>> loss = functools.partial(focal_loss, gamma=0)
        >>> norms = last_layer_gradient_norms(loss, features, logits, torch.tensor([0]))
        >>> round(norms.item(), 4)
        1.4142

    Reference: 002, Fig. 4.
    """
    check_tensors(features=features, logits=logits)
    leaf = logits.detach().requires_grad_()
    with torch.enable_grad():
        losses = loss(leaf, target)
    if losses.shape != logits.shape[:1]:
        wanted, got = tuple(logits.shape[:1]), tuple(losses.shape)
        msg = f"loss must give one value per sample, shape {wanted}, got {got}: use reduction='none'"
        raise ValueError(msg)
    (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    return torch.linalg.vector_norm(gradient, dim=1) * torch.sqrt(features.square().sum(dim=1) + float(bias))
