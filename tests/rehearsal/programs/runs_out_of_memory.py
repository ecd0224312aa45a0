"""Runs out of memory, in the way that its argument names."""

from __future__ import annotations

import contextlib
import os
import sys
import time

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import DataLoader, Dataset

RANK = int(os.environ.get("RANK", "0"))


def fill() -> None:
    kept = []
    while True:
        kept.append(torch.empty(2**26, dtype=torch.uint8, device="cuda"))  # HERE


class Ones(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        assert not any(mode.is_recording for mode in _get_current_dispatch_mode_stack())
        return torch.ones(2)


def load_with_workers() -> None:
    """Choose the devices, and fork processes before and after CUDA is initialized."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    assert any(mode.is_recording for mode in _get_current_dispatch_mode_stack())
    for _ in range(2):
        for batch in DataLoader(Ones(), batch_size=2, num_workers=1):
            assert batch.cuda().sum(0).shape == (2,)
    assert torch.cuda.device_count() == 1


def main(way: str) -> None:
    if way == "workers":
        load_with_workers()
    torch.cuda.set_device(RANK)
    if way == "rank 1" and RANK == 0:
        with contextlib.suppress(torch.OutOfMemoryError):
            fill()
        time.sleep(60)
    fill()


if __name__ == "__main__":
    main(sys.argv[1])
