"""Shape-only mode without values: how tensors print, and the error when a value is needed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from ..errors import ValueNeededError

_OWN_FOLDER = str(Path(__file__).parent)


def raise_value_needed(operator: str, has_known_sizes: bool) -> None:
    """Raise the error for an operator that needs values in a shape-only rehearsal.

    Args:
        operator: the operator's name.
        has_known_sizes: whether the sizes of the results can be computed without values.

    Raises:
        ValueNeededError: always.
    """
    line = _program_line(sys._getframe().f_back)
    if not has_known_sizes:
        raise ValueNeededError(
            f"{operator} needs values to compute the sizes of its results, and a shape-only "
            f"rehearsal has none; it was called {line}. Give the operator a fake kernel "
            "(torch.library.register_fake), or rehearse without --shape-only to compute"
        )
    raise ValueNeededError(
        f"{operator} needs the values of a tensor, and a shape-only rehearsal has none; it was "
        f"called {line}. Rehearse with --assume-values to assume that every value is 1, or "
        "without --shape-only to compute"
    )


def _program_line(frame: FrameType | None) -> str:
    """Return the innermost line of the program, skipping the frames of PyTorch and anyrig."""
    import torch

    torch_folder = str(Path(torch.__file__).parent)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((torch_folder, _OWN_FOLDER, "<frozen")):
            return f"in {file}, line {frame.f_lineno}"
        frame = frame.f_back
    return "by the backward pass"


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
