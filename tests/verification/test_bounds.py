"""How much two tensors may differ by rounding."""

from __future__ import annotations

import math

import pytest
import torch

from anyrig.verification.bounds import allowed, differs


def test_the_limit_grows_with_the_steps_and_the_norms() -> None:
    limit = allowed(1e-4, 3, torch.tensor([3.0, 4.0]), all_norm=1000.0)
    assert limit == pytest.approx(1e-4 * 3 * (5 + 0.001 * 1000))


def test_what_is_no_number_differs() -> None:
    one = torch.ones(2)
    assert not differs(one, one, 0.0)
    assert differs(torch.tensor([1.0, math.nan]), one, 1e9)
