"""Slow references of the networks for texts: one tree node by node, one document at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def tree_logits(network, words, left, right):
    """Logits of the nodes of one tree, each computed from its children; leaves have the left child -1."""

    def state(node):
        if left[node] < 0:
            c, gate = network.leaf(network.words(torch.tensor(int(words[node])))).chunk(2)
            return c, torch.sigmoid(gate) * torch.tanh(c)
        (c_left, h_left), (c_right, h_right) = state(left[node]), state(right[node])
        i, f_left, f_right, o, u = network.node(torch.cat([h_left, h_right])).chunk(5)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f_left) * c_left + torch.sigmoid(f_right) * c_right
        return c, torch.sigmoid(o) * torch.tanh(c)

    return torch.stack([network.head(state(node)[1]) for node in range(len(words))])


def document_logits(network, words):
    """Logits of one document, computed with PyTorch's layers; a document without words has zero features."""
    if len(words):
        features = network.words(torch.as_tensor(words))[None].mT
        for number, layer in enumerate(network.convolutions):
            if number:
                features = F.max_pool1d(features, 5, ceil_mode=True)
            features = torch.relu(layer(features))
        features = features.amax(dim=2)[0]
    else:
        features = network.dense.weight.new_zeros(network.dense.in_features)
    return network.head(torch.relu(network.dense(features)))
