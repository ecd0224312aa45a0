"""Any module as a chain of blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ....errors import SpreadError
from ..chain import Chain
from .sequential import chain_of_sequential, is_sequential


def chain_of(module: nn.Module, split_points: Sequence[str] | None = None) -> Chain:
    """Return `module` as a chain of blocks that computes the same, with the same parameters.

    Args:
        module: stays as it is. Its later changes (mode, state, `requires_grad`) take effect.
        split_points: the names of submodules at which a new block begins. None cuts wherever few
            values cross.

    Raises:
        SpreadError: the module cannot be divided; the message names the place in its code.
    """
    if is_sequential(module) and split_points is None:
        return chain_of_sequential(module)  # type: ignore[arg-type]
    raise SpreadError("only an nn.Sequential can be divided so far")
