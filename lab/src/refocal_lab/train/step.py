"""One optimizer step as a whole: batch, augmentation, forward, loss, backward, update.

On a GPU the step is captured once as a CUDA graph, and the host only replays it. The network computes in bfloat16 with
channels last. The optimizer updates float32 parameters, of which the network holds rounded copies.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from refocal.curvature import HessianTracePenalty, twice_differentiable
from refocal.losses import find_policy
from refocal_lab.train.batches import BatchSource
from refocal_lab.train.models.layers import Dropout, Head, WordVectors
from refocal_lab.train.process import combine
from refocal_lab.train.recipe import TrainingRecipe

_IN_FLIGHT = 8  # steps between two marks at which the host waits
_WARM_UP = 3  # steps before a capture; libraries choose their kernels in the first ones


class Step:
    """Trains a network step by step, and knows all tensors that a checkpoint must hold.

    Args:
        network: Trained in place, on its device.
        loss: Takes (logits, class indices).
        batches: The training part.
        recipe: The optimizer's settings.
        classes: Number of classes.
        half: Compute in bfloat16.
        compiled: Let `torch.compile` fuse the elementwise operations of the network.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: nn.Module,
        batches: BatchSource,
        recipe: TrainingRecipe,
        *,
        classes: int,
        half: bool,
        compiled: bool,
    ) -> None:
        self.network, self.loss, self._batches = network, loss, batches
        self._clip_norm, self._summed = recipe.clip_norm, recipe.sum_loss
        self._penalty = HessianTracePenalty(recipe.curvature_penalty or 0.0, seed=recipe.seed)
        self._forward: Callable[..., Any] = _compiled_forward() if compiled else _forward
        device = batches.position.device
        trained = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
        self._names, self._used = list(trained), list[Tensor](trained.values())
        rounded = {id(weight) for weight in _rounded_weights(network)} if half else set()
        self._is_rounded = [id(weight) in rounded for weight in self._used]
        self.parameters = [
            weight.detach().clone() if apart else weight
            for weight, apart in zip(self._used, self._is_rounded, strict=True)
        ]
        self._rounded = list(itertools.compress(self._used, self._is_rounded))
        self._exact = list(itertools.compress(self.parameters, self._is_rounded))
        for weight in self._rounded:
            weight.data = weight.data.to(torch.bfloat16)
        self._exact_gradients = [torch.zeros_like(exact) for exact in self._exact]
        for exact, gradient in zip(self._exact, self._exact_gradients, strict=True):
            exact.grad = gradient
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d) and module.momentum is not None:
                module.num_batches_tracked = None  # unused if the momentum is fixed, but it costs a kernel launch
        self._rate = torch.zeros((), device=device)
        self._seed = recipe.seed
        self._dropouts = [module for module in network.modules() if isinstance(module, Dropout)]
        self._optimizer = build_optimizer(self._group_by_decay(recipe.weight_decay), recipe, rate=self._rate)
        # PyTorch's AdaGrad counts its steps on the host
        self._can_be_captured = batches.fixed_shapes and recipe.optimizer != "adagrad"
        outputs = torch.empty((batches.size, classes), device="meta")
        self.losses = torch.zeros(batches.steps, device=device)
        self.logits = torch.zeros((batches.steps, *batches.select_samples(outputs).shape), device=device)
        self._graphs: dict[float | None, torch.cuda.CUDAGraph] = {}
        # Each step has its own stream: libraries keep work space per stream, and steps that share it cannot overlap.
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def state(self) -> dict[str, Tensor]:
        """The tensors that training changes, by name. Copying into them restores a state."""
        trained = dict(zip(self._names, self.parameters, strict=True))
        tensors = {
            f"parameter.{name}": trained.get(name, weight).data for name, weight in self.network.named_parameters()
        }
        tensors |= {f"buffer.{name}": buffer for name, buffer in self.network.named_buffers()}
        tensors |= {f"loss.{name}": buffer for name, buffer in self.loss.named_buffers()}
        for name, kept in trained.items():
            for key, value in self._optimizer.state[kept].items():
                tensors[f"{key}.{name}"] = value
        return tensors

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from a state."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
        self._round()

    def run_epoch(self, epoch: int, *, rate: float) -> None:
        """Run all steps of an epoch. Their losses and logits are then in `losses` and `logits`."""
        self.network.train()
        self._rate.fill_(rate)
        self._batches.draw(epoch)
        self._penalty.calls = epoch * self._batches.steps
        for number, dropout in enumerate(self._dropouts):
            seed = np.random.SeedSequence([self._seed, epoch, number]).generate_state(1)
            dropout.restart(int(seed[0]), self._rate.device)
        if not self._graphs:
            for _ in range(self._batches.steps):
                self._advance()
            return
        replay = self._graphs[self._phase()].replay
        marks = [torch.cuda.Event(blocking=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        for number in range(self._batches.steps):
            replay()
            if number % _IN_FLIGHT == 0:  # the host stays at most two marks ahead
                mark = marks[number // _IN_FLIGHT % 2]
                mark.synchronize()
                mark.record()

    def capture(self) -> None:
        """Capture the step with the present loss, on a GPU and if possible. This trains nothing."""
        if self._phase() in self._graphs or self.stream is None or not self._can_be_captured:
            return
        self.network.train()
        before = {name: tensor.clone() for name, tensor in self.state().items()}
        self.stream.wait_stream(torch.cuda.current_stream())
        # no cudnn.benchmark: replays of some kernels that it chose on an H200 did not end
        with torch.cuda.stream(self.stream):
            for _ in range(_WARM_UP):
                self._batches.position.zero_()
                self._advance()
        self.stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        self._batches.position.zero_()
        with torch.cuda.graph(graph, stream=self.stream):
            self._advance()
        self._graphs[self._phase()] = graph
        self.restore(before)
        torch.cuda.current_stream().synchronize()  # replays run on another stream

    def _phase(self) -> float | None:
        """The gamma that a captured step holds as a constant; None if it holds none."""
        policy = find_policy(self.loss)
        return None if policy is None else policy.current_gamma

    def _advance(self) -> None:
        with twice_differentiable() if self._penalty.tau else contextlib.nullcontext():
            logits, labels = self._forward(self.network, self._batches)
        loss = self.loss(logits.float(), labels)
        if not self._summed and len(labels) != self._batches.size:
            loss = loss * (len(labels) / self._batches.size)  # sum over the labels of a sample, mean over samples
        if self._penalty.tau:
            loss = loss + self._penalty(loss, self._used)
        # your own network may have parameters that its logits do not depend on: their gradients are zero
        gradients = torch.autograd.grad(loss, self._used, materialize_grads=True)
        with torch.no_grad():
            self._take(gradients)
            combine([kept.grad for kept in self.parameters], summed=self._summed)
            if self._clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(self.parameters, self._clip_norm)
            self._optimizer.step()
            self._round()
            here = self._batches.position
            self.losses.index_copy_(0, here, loss.detach().reshape(1).float())
            self.logits.index_copy_(0, here, self._batches.select_samples(logits.detach())[None].float())
            self._batches.advance()

    def _group_by_decay(self, weight_decay: float) -> list[dict[str, Any]]:
        """The parameters in groups: word vectors do not decay, all others do."""
        vectors = {id(module.weight) for module in self.network.modules() if isinstance(module, WordVectors)}
        kinds: tuple[list[Tensor], list[Tensor]] = [], []
        for weight, kept in zip(self._used, self.parameters, strict=True):
            kinds[id(weight) in vectors].append(kept)
        groups = [
            {"params": kind, "weight_decay": decay} for kind, decay in zip(kinds, (weight_decay, 0.0), strict=True)
        ]
        return [group for group in groups if group["params"]]

    def _take(self, gradients: tuple[Tensor, ...]) -> None:
        """Give each parameter its gradient. Gradients of rounded weights are copied, all in one launch."""
        if self._rounded:
            torch._foreach_copy_(self._exact_gradients, list(itertools.compress(gradients, self._is_rounded)))
        for kept, gradient, apart in zip(self.parameters, gradients, self._is_rounded, strict=True):
            if not apart:  # fused optimizers walk through memory, so both must have one order there
                in_order = gradient.stride() == kept.stride()
                kept.grad = gradient if in_order else torch.empty_like(kept).copy_(gradient)

    def _round(self) -> None:
        if self._rounded:
            torch._foreach_copy_(self._rounded, self._exact)


def build_optimizer(groups: list[dict[str, Any]], recipe: TrainingRecipe, *, rate: Tensor) -> torch.optim.Optimizer:
    """The optimizer of a recipe, with all of its state allocated, so that a checkpoint can be copied into it."""
    match recipe.optimizer:
        case "adagrad":
            return torch.optim.Adagrad(groups, lr=rate, fused=rate.device.type == "cpu")
        case "adam":
            on_gpu = rate.device.type == "cuda"  # where steps are captured
            made: torch.optim.Optimizer = torch.optim.Adam(groups, lr=rate, fused=True, capturable=on_gpu)
            state: dict[str, Tensor | None] = {"step": torch.zeros_like(rate)} | dict.fromkeys(
                ("exp_avg", "exp_avg_sq")
            )
        case _:
            made = torch.optim.SGD(groups, lr=rate, momentum=recipe.momentum, fused=True)
            state = {"momentum_buffer": None} if recipe.momentum else {}
    for group in made.param_groups:
        for kept in group["params"]:
            made.state[kept] |= {key: torch.zeros_like(kept if like is None else like) for key, like in state.items()}
    return made


def _forward(network: nn.Module, batches: BatchSource) -> tuple[Tensor, Tensor]:
    inputs, labels = batches.next()
    return network(inputs), labels


@functools.cache
def _compiled_forward() -> Callable[..., Any]:
    """One compiled function for all networks of an architecture; parameters are its inputs."""
    return torch.compile(_forward, dynamic=False)


def _rounded_weights(network: nn.Module) -> list[Tensor]:
    """All weights except those of the last layer and of batch norm, which compute in float32."""
    return [
        weight
        for module in network.modules()
        for weight in module.parameters(recurse=False)
        if not isinstance(module, nn.BatchNorm2d | Head)
    ]
