"""Causal language models that are trained from their hidden states, without keeping the logits."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refocal.integrations.transformers.labels import IGNORED, at_least_float32, check_criterion, divide
from refocal.losses.focal import FocalLoss
from refocal.losses.linear.focal import LinearFocalLoss
from refocal.losses.linear.posteriors import cap
from refocal.losses.policies import find_policy

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutputWithPast


def train_without_logits(
    model: PreTrainedModel,
    criterion: FocalLoss,
    *,
    chunk_bytes: int | None = None,
    sum_dtype: torch.dtype | None = None,
) -> LinearFocalLoss:
    """Let a causal language model compute its loss as focal loss of its hidden states, so that no logits are kept.

    Call it before you make a Trainer, without `compute_loss_func`. The model's `forward` is replaced, on this object
    only: given labels, it returns the focal loss, divided as `TrainerLoss` does, and in training `logits=None`. In
    evaluation it also returns the logits, which `compute_metrics` needs; `skip_logits=` overrides this. Without labels,
    as in generation, and after saving and loading, it is the model that it was.

    The final soft cap of models such as Gemma 2 is read from their configuration. A model whose logits are otherwise
    not the product of hidden states and head is rejected; to find out, it is run on two tokens.

    Args:
        model: A causal language model with a linear head, whose weights may be tied to the embedding.
        criterion: The focal loss, with a number, one value per class, or a schedule as gamma.
        chunk_bytes: Memory for the logits of a chunk; see `refocal.losses.linear_focal_loss`.
        sum_dtype: Type in which the chunks' gradients of the head are added up; see there.

    Returns:
        The loss that the model uses. Its `log_posterior(hidden, head, target)` and `posterior(hidden, head, top=k)`
        give p(y|x) without keeping logits.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from refocal.losses import FocalLoss
        >>> config = LlamaConfig(
        ...     vocab_size=50, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
        ... )
        >>> model = LlamaForCausalLM(config)
        >>> _ = train_without_logits(model, FocalLoss(gamma=2))
        >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
        >>> outputs = model(input_ids=tokens, labels=tokens)
        >>> outputs.logits is None, outputs.loss.requires_grad
        (True, True)
    """
    from transformers.modeling_outputs import CausalLMOutputWithPast

    _check_focal(criterion)
    _check_model(model)
    causal_lm: Any = model  # its package may be installed without types
    softcap = _read_softcap(causal_lm)
    linear = LinearFocalLoss(
        criterion.gamma,
        weight=criterion.weight,
        reduction="sum",
        label_smoothing=criterion.label_smoothing,
        smoothing_edge=criterion.smoothing_edge,
        softcap=softcap,
        detached=criterion.detached,
        chunk_bytes=chunk_bytes,
        sum_dtype=sum_dtype,
    )
    _check_logits(causal_lm, softcap)
    own_signature = inspect.signature(causal_lm.forward)
    own_forward = causal_lm.forward.__func__  # not bound, so that a copy of the model calls itself

    def forward(self: Any, *args: Any, **kwargs: Any) -> CausalLMOutputWithPast:
        inputs = dict(**own_signature.bind_partial(*args).arguments, **kwargs)
        labels, shifted = inputs.pop("labels", None), inputs.pop("shift_labels", None)
        if labels is None and shifted is None:
            return own_forward(self, **inputs)
        skip_logits = inputs.pop("skip_logits", self.training)
        num_items_in_batch = inputs.pop("num_items_in_batch", None)
        _check_device(self, inputs)
        hidden, outputs = _run_body(self, **inputs)
        # The last position predicts no label. Its row is ignored, because cutting it off would copy the others.
        target = (F.pad(labels[..., 1:], (0, 1), value=IGNORED) if shifted is None else shifted).to(hidden.device)
        head = _find_head(self)
        total = linear.to(hidden.device)(hidden, head.weight, target, head.bias)
        return CausalLMOutputWithPast(
            loss=divide(total, target, num_items_in_batch),
            logits=None if skip_logits else _compute_logits(head, hidden, softcap),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    # Trainer reads the names of a model's inputs from its signature, and `generate` checks them.
    forward.__signature__ = inspect.signature(own_forward)  # type: ignore[attr-defined]
    causal_lm.forward = MethodType(forward, causal_lm)
    causal_lm.accepts_loss_kwargs = True  # so that Trainer passes num_items_in_batch
    return linear


def _check_focal(criterion: Any) -> None:
    """Reject a criterion that has no form on hidden states."""
    if not isinstance(criterion, FocalLoss):
        msg = f"criterion must be a FocalLoss, got {type(criterion).__name__}"
        raise TypeError(msg)
    check_criterion(criterion)
    policy = find_policy(criterion)
    if policy is not None and policy.current_gamma is None:
        msg = f"criterion must have one gamma for all samples, got {policy!r}: use TrainerLoss"
        raise TypeError(msg)


def _check_device(model: Any, inputs: dict[str, Any]) -> None:
    """Reject the inputs of a replica: its `forward` is that of the original model, which is on another device."""
    texts = [inputs[name] for name in ("input_ids", "inputs_embeds") if inputs.get(name) is not None]
    device = model.get_input_embeddings().weight.device
    if device.type == "cpu":  # as when weights are offloaded; replicas are on accelerators
        return
    if any(text.device != device for text in texts):
        msg = (
            f"the inputs are on {texts[0].device} and the model is on {device}: train_without_logits does not work "
            "with nn.DataParallel: start with torchrun or accelerate launch"
        )
        raise ValueError(msg)


def _run_body(model: Any, **inputs: Any) -> tuple[Tensor, Any]:
    """The hidden states (..., D) that enter the head, and all outputs of the model without its head."""
    outputs = model.base_model(**{"use_cache": False, **inputs, "return_dict": True})
    return outputs.last_hidden_state, outputs


def _compute_logits(head: nn.Linear, hidden: Tensor, softcap: float | None) -> Tensor:
    """The logits that the loss uses: from the weights of the head, without its own `forward` and its hooks."""
    return cap(F.linear(hidden, head.weight, head.bias), softcap or 0.0)


def _find_head(model: Any) -> nn.Linear:
    """Find the last layer; raise an error if its weights alone do not determine its output, as with an adapter."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        msg = f"the model must have a linear head, without an adapter on it, got {type(head).__name__}"
        raise TypeError(msg)
    return head


def _read_softcap(model: Any) -> float | None:
    """The bound of the logits, None if there is none."""
    config = model.config.get_text_config()
    softcap: float | None = getattr(config, "final_logit_softcapping", None)
    return softcap


def _check_model(model: Any) -> None:
    """Reject what is not a causal language model, or has a part of the loss that would be lost."""
    from transformers import PreTrainedModel

    is_causal = isinstance(model, PreTrainedModel) and model.can_generate() and not model.config.is_encoder_decoder
    if not is_causal or model.base_model is model:
        msg = f"model must be a causal language model of transformers with body and head, got {type(model).__name__}"
        if hasattr(model, "get_base_model"):  # as in PEFT
            msg += ": pass peft_model.get_base_model()"
        raise TypeError(msg)
    if not isinstance(model.forward, MethodType):
        msg = "model.forward is wrapped, for example by device_map: call train_without_logits on a model on one device"
        raise TypeError(msg)
    if getattr(model.config.get_text_config(), "output_router_logits", False):
        msg = (
            "train_without_logits does not add the model's own aux_loss, which balances its experts: "
            "set model.config.output_router_logits = False"
        )
        raise ValueError(msg)


@torch.no_grad()
def _check_logits(model: Any, softcap: float | None) -> None:
    """Reject a model whose logits are not those of its head and soft cap."""
    tokens = torch.tensor([[0, 1]], device=model.device)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    with _evaluating(model):
        own = at_least_float32(model(**inputs).logits)
        ours = at_least_float32(_compute_logits(_find_head(model), _run_body(model, **inputs)[0], softcap))
    if own.shape != ours.shape or not torch.allclose(own, ours, rtol=0, atol=0.01 * float(own.abs().max())):
        msg = (
            f"the logits of {type(model).__name__} are not the product of its last hidden states and its head, with "
            f"final_logit_softcapping={softcap}: use TrainerLoss"
        )
        raise ValueError(msg)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation, and back to what each module was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
