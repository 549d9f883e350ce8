"""How strong the gradients of a loss are: relative to cross-entropy, and in the last layer of a network."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from refocal._arrays import PerClass
from refocal.losses.rows import check_tensors
from refocal.maps.focal import phi


def gradient_factor(p: Tensor, *, gamma: PerClass) -> Tensor:
    """The gradient of focal loss divided by that of cross-entropy, for a true-class probability p.

    The factor is g(p, gamma) = (1 - p)^gamma - gamma p (1 - p)^(gamma - 1) log p, the same function as `refocal.phi`.
    Use it to see which samples a gamma emphasizes.

    Args:
        p: Probabilities of the true class.
        gamma: Focusing parameter > -1.

    Returns:
        Array like `p`.

    Example:
        >>> [round(g, 3) for g in gradient_factor(torch.tensor([0.1, 0.9]), gamma=3.0).tolist()]
        [1.289, 0.004]

    Reference: Mukhoti et al. (2020), Prop. 1.
    """
    return phi(p, gamma=gamma)


def last_layer_gradient_norms(
    loss: Callable[[Tensor, Tensor], Tensor], features: Tensor, logits: Tensor, target: Tensor, *, bias: bool = True
) -> Tensor:
    """Norm of each sample's gradient with respect to a last linear layer, without forming the gradients.

    The gradient of sample i with respect to the weights is the outer product of dL_i/dz_i and the features h_i. Its
    norm is |dL_i/dz_i| |h_i|; a bias adds 1 to |h_i|^2.

    Args:
        loss: Loss of (logits, target) with one value per sample, such as a module with `reduction="none"`.
        features: Input of the last layer (N, D).
        logits: Its output (N, K).
        target: The target that `loss` takes.
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

    Reference: Mukhoti et al. (2020), Fig. 4.
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
