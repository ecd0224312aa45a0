"""Dropout is off while a training run is verified, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from anyrig.observe.hooks import Replacements
from anyrig.verification.dropout import DropoutOff


def test_attention_by_positions_is_what_it_is_without_dropout() -> None:
    one = torch.randn(2, 1, 4, 8, dtype=torch.float64)
    expected = nn.functional.scaled_dot_product_attention(one, one, one)
    off, replacements = DropoutOff(), Replacements()
    off.start(replacements)
    try:
        attend = nn.functional.scaled_dot_product_attention
        found = [attend(one, one, one, None, 0.5), attend(one, one, one, None, 0.5, False)]
    finally:
        replacements.restore()
    assert all(each.equal(expected) for each in found)
    assert len(off.take_states()) == 2


@pytest.mark.parametrize(
    "name",
    [
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "alpha_dropout",
        "feature_alpha_dropout",
    ],
)
def test_each_function_returns_its_input(name: str) -> None:
    functions: Any = nn.functional
    dimensions = {"dropout2d": 4, "dropout3d": 5}.get(name, 3)
    one = torch.ones(4, 8, *[3] * (dimensions - 2))
    off, replacements = DropoutOff(), Replacements()
    off.start(replacements)
    try:
        assert getattr(functions, name)(one, 0.5, True).equal(one)
        (state,) = off.take_states()
        assert state.endswith(
            f" {tuple(one.shape[1:])}"
        )  # of a sample: ranks have batches of their own sizes
        assert off.take_states() == ()
    finally:
        replacements.restore()
    assert not getattr(functions, name)(one, 0.5, True).equal(one)


def test_dropout_that_does_not_train_is_not_noted() -> None:
    one = torch.ones(4, 8)
    off, replacements = DropoutOff(), Replacements()
    off.start(replacements)
    try:
        nn.functional.dropout(one, 0.5, training=False)
        nn.functional.dropout(one, 0.0)
        nn.functional.scaled_dot_product_attention(one, one, one, dropout_p=0.0)
        assert not off.was_called
        with torch.no_grad():
            assert not nn.functional.dropout(one, 0.5).equal(one)
        assert off.take_states() == ()
        torch.manual_seed(1)
        nn.functional.dropout(one)
        torch.manual_seed(2)
        nn.functional.scaled_dot_product_attention(one, one, one, dropout_p=0.5)
        torch.manual_seed(1)
        nn.functional.dropout(one)
    finally:
        replacements.restore()
    first, second, third = off.take_states()
    assert off.was_called
    assert first == third != second
