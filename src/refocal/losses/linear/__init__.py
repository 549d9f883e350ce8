"""Focal loss from hidden states and the weights of the last linear layer, without keeping the logits.

A call passes through these modules in this order:

- `focal` is the public function and module.
- `differentiation` makes the loss differentiable.
- `operator` computes losses and gradients chunk by chunk, as one operator that `torch.compile` does not look into.
- `chunks` divides the rows; `products` multiplies matrices; `steps` turns the logits of a chunk into their gradient.
- `posteriors` computes p(y|x), chunk by chunk too.
"""
