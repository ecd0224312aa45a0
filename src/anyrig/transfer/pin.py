"""Page-locked host memory, which an accelerator can copy from and to asynchronously."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import torch

from .containers import has_method
from .tree import Path, map_leaves

T = TypeVar("T")


def pin(tree: T) -> T:
    """Return `tree` with its CPU tensors in page-locked memory, if that makes copies faster.

    Without an accelerator, or with one that shares the host's memory (mps), the tree itself is
    returned. Tensors that are pinned, on a device, sparse or nested, or that require grad are kept.
    An object with a method `pin_memory`, as `torch.utils.data.DataLoader` expects of custom batch
    types, is replaced by the method's result.

    Page-locked memory cannot be swapped out and is slow to allocate; PyTorch caches and reuses it.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or not pinning_helps(accelerator.type):
        return tree
    pinned: T = map_leaves(tree, _pin_leaf)
    return pinned


@cache
def pinning_helps(kind: str) -> bool:
    """Return whether pinned memory makes copies to and from this kind of accelerator faster.

    PyTorch has no query for this, so the function tries to pin one element. On mps the host and the
    device share one memory, and `torch.utils.data.DataLoader` does not pin either.
    """
    if kind in ("cpu", "mps", "meta"):
        return False
    try:
        return torch.empty(1, device="cpu").pin_memory().is_pinned()
    except RuntimeError:
        return False


def is_plain_host_tensor(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is dense CPU memory outside any graph and any tracing.

    Sparse, nested, distributed and fake tensors, and those that require grad, are copied in the
    caller's thread and modes.
    """
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.requires_grad
        and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    )


def pin_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain host tensor in pinned memory, laid out as `Tensor.to` lays out a copy.

    `Tensor.pin_memory` keeps the strides, and so refuses a tensor that has elements in one place,
    as an expanded tensor has.
    """
    if tensor.is_contiguous() or tensor.is_pinned():
        return tensor.pin_memory()
    return torch.empty_like(tensor, pin_memory=True).copy_(tensor)


def _pin_leaf(leaf: Any, path: Path) -> Any:
    if isinstance(leaf, torch.Tensor):
        return pin_tensor(leaf) if is_plain_host_tensor(leaf) else leaf
    if has_method(leaf, "pin_memory"):
        pinned = leaf.pin_memory()
        return leaf if pinned is None else pinned
    return leaf
