"""How many labels a loss is averaged over."""

from __future__ import annotations

import torch
from torch import nn

from anyrig.verification.label_counts import LabelCounts


def test_labels_that_a_loss_ignores_do_not_count() -> None:
    scores, labels = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 2, -100, 2])
    counts = LabelCounts()
    counts.start()
    try:
        nn.CrossEntropyLoss()(scores, labels)
        nn.CrossEntropyLoss(ignore_index=2)(scores[:2], labels[:2])
        nn.functional.cross_entropy(scores[:2], labels[:2], None, None, 2)  # by its place
    finally:
        counts.stop()
    assert counts.take() == (3, 1, 1)
