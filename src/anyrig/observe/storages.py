"""The memory behind tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor. Any other tensor is returned unchanged."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def storages_of(tensor: Tensor) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of a tensor. Sparse tensors and wrappers such as DTensor have several."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            part = getattr(tensor, name)
            if isinstance(part, Tensor):  # and not, for example, the mesh of a DTensor
                yield from storages_of(part)
    elif (parts := _SPARSE_PARTS.get(tensor.layout)) is not None:
        for part in parts:
            yield from storages_of(getattr(tensor, part)())
    elif tensor.layout is torch.strided:
        # Tensors inside torch.func transforms have no storage of their own.
        with suppress(NotImplementedError):
            storage = tensor.untyped_storage()
            # Those of meta tensors and FakeTensors are on "meta". A virtual GPU that has no memory
            # for a result leaves the device of its tensor as it was.
            if storage.device.type != "meta" and storage.device == tensor.device:
                yield storage
