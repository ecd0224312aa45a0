"""The module that tests change, and its input."""

from __future__ import annotations

import pytest
import torch
from changed_net import Net
from torch import Tensor
from trained_models import on_lead


@pytest.fixture
def net() -> Net:
    return on_lead(Net())


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 4, dtype=torch.float64, device="cuda:0")
