"""How a module was spread, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import SpreadError
from .replicas.transparent import TransparentModule

if TYPE_CHECKING:
    import torch

    from .layout import Layout


def explain(model: torch.nn.Module) -> Layout:
    """Return how `spread` laid a model on its devices, and why; print it.

    While shares are being measured, in the first steps, it is as of the last one.

    Raises:
        SpreadError: `model` was not spread.
    """
    if not isinstance(model, TransparentModule):
        raise SpreadError(
            f"this {type(model).__name__} was not spread; pass what anyrig.spread() returned"
        )
    layout: Layout = model._layout
    return layout
