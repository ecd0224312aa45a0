"""Shape-only mode without values: how tensors print, and the error when a value is needed."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from pathlib import Path
from types import FrameType
from typing import Any

from ..errors import ValueNeededError

_OWN_FOLDER = str(Path(__file__).parent)
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")

# Why values are unknown (WhyUnknown of csrc/memory/memory.h), and what to change in the program.
_CAUSES = {
    "drawn integers": (
        "They come from random integers that the GPU drew",
        'Draw those on the CPU and copy them, as in torch.randint(...).to("cuda")',
    ),
    "drawn numbers": (
        "They come from random numbers that the GPU drew, such as weights or dropout",
        "",
    ),
    "too many": (
        "They come from a tensor of more than 2 MiB, or from a product of more than 64 KiB",
        "",
    ),
    "from outside": ("They come from another rank, another process or a replayed graph", ""),
}


# Operators whose results have as many elements as a mask has true ones.
_SELECTING = frozenset(
    f"aten::{name}"
    for name in ("index", "index_put_", "_index_put_impl_", "masked_select", "nonzero")
)


# In a rehearsal of rank 0 alone.
_ALONE = (
    "They come from another rank, and this rehearsal runs rank 0 alone (--ranks)",
    "Let rank 0 send them",
)


def raise_value_needed(operator: str, why: str | None, *, is_alone: bool = False) -> None:
    """Raise the error for an operator that needs values in a shape-only rehearsal.

    Args:
        operator: the operator's name.
        why: why the values are unknown, a key of `_CAUSES` or another word; None if the sizes of
            the results cannot be computed without values.
        is_alone: whether rank 0 runs alone, which needs shape-only mode.

    Raises:
        ValueNeededError: always.
    """
    line = _program_line(sys._getframe().f_back)
    with_data = (
        "rehearse fewer ranks, each in a process of its own: without --ranks, and with --device all"
        if is_alone
        else "rehearse without --shape-only to compute"
    )
    if why is None:
        raise ValueNeededError(
            f"{operator} needs values to compute the sizes of its results, and a shape-only "
            f"rehearsal has none; it was called {line}. Give the operator a fake kernel "
            f"(torch.library.register_fake), or {with_data}"
        )
    cause, change = _CAUSES.get(why, ("", ""))
    if why == "too many":
        change = _way_around(operator)
    remedies = [change, "rehearse with --assume-values to assume that every value is 1"]
    if is_alone and why == "from outside":
        cause, *remedies = _ALONE
    remedy = ", ".join(filter(None, remedies))
    raise ValueNeededError(
        f"{operator} needs the values of a tensor, and a shape-only rehearsal has none; it was "
        f"called {line}. {cause + '. ' if cause else ''}{remedy[0].upper()}{remedy[1:]}, or "
        f"{with_data}"
    )


def _way_around(operator: str) -> str:
    """Return the smallest change that answers `operator` from the host, for a large tensor."""
    if operator.startswith("aten::_local_scalar_dense"):
        return (
            'Ask the tensor on the CPU before it is copied, as in mask.all() before mask.to("cuda")'
        )
    if operator in _SELECTING:
        return (
            "Keep the mask on the CPU: a tensor of the GPU can be indexed by it, and torch.where "
            "and masked_fill need no values"
        )
    return "Compute them on the CPU, before the copy to the GPU"


def _program_line(frame: FrameType | None) -> str:
    """Return the innermost line outside PyTorch and anyrig, and the program's own if it differs."""
    import torch

    torch_folder = str(Path(torch.__file__).parent)
    inner = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((torch_folder, _OWN_FOLDER, "<frozen")):
            inner = inner or frame
            if not _is_library(file):
                break
        frame = frame.f_back
    if inner is None:
        return "by the backward pass"
    if frame is None or frame is inner:
        return _text(inner)
    return f"{_text(inner)}, below the program's {_text(frame).removeprefix('in ')}"


def _is_library(file: str) -> bool:
    parts = Path(file).parts
    return (
        "site-packages" in parts or "dist-packages" in parts or file.startswith(_STANDARD_LIBRARY)
    )


def _text(frame: FrameType) -> str:
    file, number = frame.f_code.co_filename, frame.f_lineno
    line = linecache.getline(file, number, frame.f_globals).strip()
    return f"in {file}, line {number}" + (f" ({line})" if line else "")


def patch() -> None:
    """Print ``...`` for the values of virtual tensors, as PyTorch does for Meta tensors."""
    import torch._tensor_str

    printer: Any = torch._tensor_str
    original_tensor_str = printer._tensor_str

    def tensor_str(self: torch.Tensor, indent: int) -> str:
        if self.is_cuda:
            return f"..., size={tuple(self.shape)}"
        return str(original_tensor_str(self, indent))

    printer._tensor_str = tensor_str
