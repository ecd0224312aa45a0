"""How many labels a loss is averaged over."""

from __future__ import annotations

import torch
from torch import nn

from anyrig.observe.hooks import Replacements
from anyrig.verification.label_counts import LabelCounts


def test_labels_that_a_loss_ignores_do_not_count() -> None:
    scores, labels = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 2, -100, 2])
    counts, replacements = LabelCounts(), Replacements()
    counts.start(replacements)
    try:
        nn.CrossEntropyLoss()(scores, labels)
        nn.CrossEntropyLoss(ignore_index=2)(scores[:2], labels[:2])
        nn.functional.cross_entropy(scores[:2], labels[:2], None, None, 2)  # by its place
    finally:
        replacements.restore()
    assert counts.take() == (3, 1, 1)
    assert counts.take() == ()


def test_only_losses_of_classes_that_train_are_counted() -> None:
    scores, labels = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 2, -100, 2])
    counts, replacements = LabelCounts(), Replacements()
    counts.start(replacements)
    try:
        nn.functional.nll_loss(scores, labels)
        nn.functional.cross_entropy(scores.detach(), labels)
        nn.functional.cross_entropy(scores, torch.rand(4, 3))
        nn.functional.mse_loss(scores, torch.rand(4, 3))
    finally:
        replacements.restore()
    nn.functional.nll_loss(scores, labels)
    assert counts.take() == (3,)
