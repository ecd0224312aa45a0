"""Page-locked host memory, from which and into which an accelerator copies by itself."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import torch

from .containers import has_method
from .tree import Path, map_leaves

T = TypeVar("T")


def pin(tree: T) -> T:
    """Return `tree` with its CPU tensors in page-locked memory, if that helps on this machine.

    Where there is no accelerator, or one that shares the host's memory (mps), the tree itself is
    returned. Tensors that are pinned already, live on a device, are sparse or nested, or require
    grad are kept. An object with a method `pin_memory`, as `torch.utils.data.DataLoader` asks of
    batches of one's own type, is replaced by what that returns.

    Page-locked memory cannot be swapped out and is slow to allocate; PyTorch keeps and reuses it.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or not pinning_helps(accelerator.type):
        return tree
    pinned: T = map_leaves(tree, _pin_leaf)
    return pinned


@cache
def pinning_helps(kind: str) -> bool:
    """Say whether copies between pinned memory and an accelerator of this kind are faster.

    PyTorch has no query for it, so one element is pinned to see. On mps host and device share one
    memory, and `torch.utils.data.DataLoader` does not pin either.
    """
    if kind in ("cpu", "mps", "meta"):
        return False
    try:
        return torch.empty(1, device="cpu").pin_memory().is_pinned()
    except RuntimeError:
        return False


def is_plain_host_tensor(tensor: torch.Tensor) -> bool:
    """Say whether a tensor is dense memory of the CPU outside any graph and any tracing.

    Others (sparse, nested, distributed, fake tensors, those that require grad) have rules of their
    own for copies, which hold in the caller's thread and modes.
    """
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.requires_grad
        and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    )


def _pin_leaf(leaf: Any, path: Path) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.pin_memory() if is_plain_host_tensor(leaf) else leaf
    if has_method(leaf, "pin_memory"):
        pinned = leaf.pin_memory()
        return leaf if pinned is None else pinned
    return leaf
