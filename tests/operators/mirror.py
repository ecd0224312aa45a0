"""Exact copies of operands on the same device or the CPU: values, geometry and flags."""

from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map


def mirror(tree: Any) -> Any:
    """Return `tree` with every tensor and generator replaced by a copy on the same device."""
    return tree_map(_mirror_leaf, tree)


def mirror_on_cpu(tree: Any) -> Any:
    """Return `tree` with every CUDA tensor, generator and device replaced by a CPU one."""
    return tree_map(partial(_mirror_leaf, on_cpu=True), tree)


def _mirror_leaf(leaf: Any, on_cpu: bool = False) -> Any:
    if isinstance(leaf, torch.Tensor):
        return _mirror_tensor(leaf, torch.device("cpu") if on_cpu else leaf.device)
    if isinstance(leaf, torch.Generator):
        device = torch.device("cpu") if on_cpu else leaf.device
        return torch.Generator(device).manual_seed(leaf.initial_seed())
    if on_cpu and isinstance(leaf, torch.device) and leaf.type == "cuda":
        return torch.device("cpu")
    if on_cpu and isinstance(leaf, str) and leaf.startswith("cuda"):
        return "cpu"
    return leaf


def _mirror_tensor(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.is_nested:
        copy = tensor.detach().to(device, copy=True)
    else:
        # Copy the whole storage, to preserve any geometry.
        bytes_ = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        bytes_.set_(tensor.untyped_storage())
        copy = torch.empty(0, dtype=tensor.dtype, device=device)
        copy.set_(
            bytes_.to(device, copy=True).untyped_storage(),
            tensor.storage_offset(),
            tensor.size(),
            tensor.stride(),
        )
        torch._C._set_conj(copy, tensor.is_conj())
        torch._C._set_neg(copy, tensor.is_neg())
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(copy, requires_grad=tensor.requires_grad)
    return copy.requires_grad_(tensor.requires_grad)
