"""The threads that prefetch, and a loader to prefetch from."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset


def worker_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("anyrig-prefetch")]


def assert_threads_end() -> None:
    for thread in worker_threads():
        thread.join(timeout=30)
    assert worker_threads() == []


def make_loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(10.0), torch.arange(10)), batch_size=3, **options)
