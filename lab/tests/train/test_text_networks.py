"""The networks for texts against slow references, forward and backward, and published parameter counts."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from text_networks import document_logits, tree_logits

from refocal_lab.train import models
from refocal_lab.train.data.trees import read_forest
from refocal_lab.train.data.words import Documents, Lexicon
from refocal_lab.train.models.layers import Dropout
from refocal_lab.train.models.tree_lstm import TreeLSTM
from refocal_lab.train.text_batches import LONGEST, arrange_levels, pack

TREES = (
    "(3 (2 an) (4 (2 odd) (4 delight)))",
    "(1 word)",
    "(0 (1 (1 (2 not) (3 good)) (2 ,)) (1 (2 not) (2 (2 at) (2 all))))",
    "(4 (2 a) (4 joy))",
)


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


def random_tree(rng, leaves):
    if leaves == 1:
        return f"({rng.integers(5)} w{rng.integers(30)})"
    split = rng.integers(1, leaves)
    return f"({rng.integers(5)} {random_tree(rng, split)} {random_tree(rng, leaves - split)})"


def tree_network(words, *, memory=7, dtype=torch.float64):
    torch.manual_seed(0)
    return TreeLSTM(classes=5, shape=(words, 6), memory=memory).to(dtype).eval()


@pytest.mark.parametrize("trees", [TREES, TREES[:1], TREES[1:2], None])
def test_levels_give_what_recursion_gives(trees):
    rng = np.random.default_rng(0)
    lexicon = Lexicon()
    forest = read_forest(trees or [random_tree(rng, n) for n in (1, 40, 3, 17, 17)], lexicon, name="test")
    network = tree_network(len(lexicon.words()))
    levels, labels = arrange_levels(forest)
    logits = network(levels)
    slow, slow_labels = [], []
    for first, last in zip(forest.starts[:-1], forest.starts[1:], strict=True):
        slow.append(tree_logits(network, *(column[first:last] for column in (forest.words, forest.left, forest.right))))
        slow_labels.append(forest.labels[first:last])
    roots_first = torch.cat([torch.stack([tree[-1] for tree in slow]), *(tree[:-1] for tree in slow)])
    assert labels.tolist() == [tree[-1] for tree in slow_labels] + [k for tree in slow_labels for k in tree[:-1]]
    torch.testing.assert_close(logits, roots_first, rtol=1e-12, atol=1e-12)
    target = torch.from_numpy(labels)
    # different weights per node, so that exchanged gradients would show
    weights = torch.linspace(1, 2, len(labels), dtype=torch.float64)
    parameters = list(network.parameters())
    found, expected = (
        torch.autograd.grad(F.cross_entropy(each, target, reduction="none") @ weights, parameters, allow_unused=True)
        for each in (logits, roots_first)
    )
    for one, other in zip(found, expected, strict=True):
        # trees of a single word use no gates
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other, rtol=1e-10, atol=1e-12)


def test_tree_lstm_has_the_published_number_of_parameters():
    # Tai et al., Table 1: 316,800 for the composition function at d = 150 with 300-dimensional words. Each of its gates
    # has two biases, one per child, of which only the sum matters: five vectors of 150 fewer here.
    network = TreeLSTM(classes=3, shape=(10, 300))
    assert count(network.leaf) + count(network.node) == 316_800 - 5 * 150
    words, dimensions, memory, classes = 50, 100, 150, 3
    formula = (
        words * dimensions + 2 * memory * (dimensions + 1) + 5 * memory * (2 * memory + 1) + classes * (memory + 1)
    )
    assert count(models.build("tree-lstm", classes=classes, shape=(words, dimensions))) == formula


def test_gp_cnn_has_the_number_of_parameters_of_its_layers():
    words, dimensions, width, classes = 50, 100, 128, 20
    formula = words * dimensions + width * (5 * dimensions + 1) + 2 * width * (5 * width + 1)
    formula += width * (width + 1) + classes * (width + 1)
    assert count(models.build("gp-cnn", classes=classes, shape=(words, dimensions))) == formula


def documents(lengths):
    rng = np.random.default_rng(1)
    return Documents(rng.integers(0, 40, sum(lengths)).astype(np.int32), np.cumsum([0, *lengths]))


@pytest.mark.parametrize("lengths", [(3, 0, 25, 26, 130, 1, 15, 16, 49, 5), (0,), (7,), (LONGEST + 20, 50)])
def test_documents_side_by_side_give_what_each_gives_alone(lengths):
    texts = documents(lengths)
    torch.manual_seed(0)
    network = models.build("gp-cnn", classes=4, shape=(40, 6)).double()
    logits = network(pack(texts))
    slow = torch.stack(
        [
            document_logits(network, texts.words[max(first, last - LONGEST) : last])
            for first, last in zip(texts.starts[:-1], texts.starts[1:], strict=True)
        ]
    )
    torch.testing.assert_close(logits, slow, rtol=1e-11, atol=1e-12)
    weights = torch.randn(logits.shape, dtype=torch.float64)
    parameters = [*network.convolutions.parameters(), network.words.weight, *network.dense.parameters()]
    found, expected = (
        torch.autograd.grad((each * weights).sum(), parameters, allow_unused=True) for each in (logits, slow)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other, rtol=1e-9, atol=1e-11)


def test_batches_of_documents_have_few_sizes():
    rng = np.random.default_rng(0)
    batches = [pack(documents(rng.integers(0, 500, 128).tolist())) for _ in range(30)]
    words = [int((~batch.absent).sum()) for batch in batches]
    assert len(set(words)) == 30
    for name in ("words", "pieces"):
        assert len({len(getattr(batch, name)) for batch in batches}) <= 12


def test_given_vectors_are_tuned_for_trees_and_kept_for_documents():
    vectors = torch.randn(9, 4)
    for name, tuned in (("tree-lstm", True), ("gp-cnn", False)):
        network = models.build(name, classes=3, shape=(9, 4))
        network.words.start_from(vectors)
        assert torch.equal(network.words.weight, vectors)
        assert network.words.weight.requires_grad == tuned


def test_dropout_leaves_out_its_share_by_its_seed():
    dropout, features = Dropout(0.3), torch.full((500, 40), 2.0)
    drawn = []
    for seed in (1, 1, 2):
        dropout.restart(seed, features.device)
        drawn.append(dropout(features))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert set(drawn[0].unique().tolist()) == {0.0, torch.tensor(2.0 / 0.7).item()}
    left_out = (drawn[0] == 0).double().mean().item()
    assert left_out == pytest.approx(0.3, abs=5 * np.sqrt(0.21 / 20_000))
    assert dropout.eval()(features) is features


def test_half_of_the_features_of_trees_are_left_out_before_the_last_layer():
    network = models.build("tree-lstm", classes=3, shape=(40, 6))
    seen = []
    network.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    forest = arrange_levels(read_forest(TREES * 100, Lexicon(), name="test"))[0]
    for training in (False, True):
        network.train(training)(forest)
    whole, some = ((features == 0).double().mean().item() for features in seen)
    assert some - whole == pytest.approx(0.5 * (1 - whole), abs=0.03)


@pytest.mark.parametrize("name", ["gp-cnn", "tree-lstm"])
def test_networks_of_words_refuse_images(name):
    with pytest.raises(ValueError, match=rf"shape must be \(words, dimensions\) for {name}, got \(3, 32, 32\)"):
        models.build(name)
