"""A dataset of numbers, and the order in which batches have them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import TensorDataset


def numbers(rows: int) -> TensorDataset:
    return TensorDataset(torch.arange(rows, dtype=torch.float64), torch.arange(rows))


def order(loader: Any) -> list[int]:
    return [int(row) for _, y in loader for row in y]
