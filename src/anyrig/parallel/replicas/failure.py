"""An exception of a replica, told with where it happened and what the replica had got."""

from __future__ import annotations

from typing import Any

import torch

from ...transfer.tree import Path, map_leaves
from ..batch.scatter import name_argument


def add_place(error: BaseException, device: torch.device, given: Any) -> None:
    """Add to an exception's text the device of the replica and the shapes that it was given.

    The exception stays itself, of its class and with its traceback, so that whoever expects it
    from the module finds it.
    """
    place = f"[anyrig: in the replica on {device}, which was given {describe(given)}]"
    if error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{place}", *error.args[1:])
    elif hasattr(error, "add_note"):  # Python 3.11
        error.add_note(place)


def describe(given: tuple[Any, Any]) -> str:
    """Return the shapes and dtypes of the tensors in ``(args, kwargs)``, with where they are."""
    found: list[str] = []

    def note(leaf: Any, path: Path) -> Any:
        if isinstance(leaf, torch.Tensor):
            shape = "nested" if leaf.is_nested else tuple(leaf.shape)
            dtype = str(leaf.dtype).removeprefix("torch.")
            found.append(f"{name_argument(path)} {shape} {dtype}")
        return leaf

    try:
        map_leaves(given, note)
    except Exception:  # what was given cannot be walked: say less
        return "what cannot be looked into"
    return ", ".join(found) or "no tensors"
