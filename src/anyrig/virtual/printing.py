"""What shape-only mode says where a value would be: in printed tensors, and in errors."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from ..errors import ValueNeededError

_OWN_FOLDER = str(Path(__file__).parent)


def raise_value_needed(operator: str, tells_sizes: bool) -> None:
    """Raise the error for an operator that needs values where there are none.

    Args:
        operator: its name.
        tells_sizes: whether the sizes of its results are known without values.
    """
    place = _place(sys._getframe().f_back)
    if not tells_sizes:
        raise ValueNeededError(
            f"{operator} does not tell the sizes of its results without values, and a shape-only "
            f"rehearsal has none; it was called {place}. Give the operator a fake kernel "
            "(torch.library.register_fake), or rehearse without --shape-only to compute"
        )
    raise ValueNeededError(
        f"{operator} needs the values of a tensor, and a shape-only rehearsal has none; it was "
        f"called {place}. Rehearse with --assume-values to take every value to be one, or without "
        "--shape-only to compute"
    )


def _place(frame: FrameType | None) -> str:
    """Return where the program is: the innermost line that is not PyTorch's or anyrig's."""
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
    print_elsewhere = printer._tensor_str

    def tensor_str(self: torch.Tensor, indent: int) -> str:
        if self.is_cuda:
            return f"..., size={tuple(self.shape)}"
        return str(print_elsewhere(self, indent))

    printer._tensor_str = tensor_str
