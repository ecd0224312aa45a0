"""Reporting where a replica's exception was raised, and what the replica was given."""

from __future__ import annotations

from typing import Any

import torch

from ...transfer.tree import list_leaves
from ..batch.rows import name_argument


class ReplicaPlace(Exception):  # noqa: N818 - it is no error, but where one was raised
    """The device of a replica and what it was given, as Python 3.10 shows it in a traceback."""


def add_place(error: BaseException, device: torch.device, given: Any) -> None:
    """Have an exception's traceback show the replica's device and the shapes that it was given.

    The exception stays itself: its class, its arguments and its traceback are those that the module
    raised, so that an `except` clause for the module's own exception catches it.
    """
    place = f"[anyrig: in the replica on {device}, which was given {describe(given)}]"
    if not hasattr(error, "add_note"):  # Python 3.10
        add_as_cause(error, place)
    elif place not in getattr(error, "__notes__", ()):  # a module may raise one exception often
        error.add_note(place)


def add_as_cause(error: BaseException, place: str) -> None:
    """Put `place` where a traceback begins: before the first of the exceptions that led to it."""
    seen = set()
    while id(error) not in seen:
        seen.add(id(error))
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if before is None:
            if not isinstance(error, ReplicaPlace):
                error.__cause__ = ReplicaPlace(place)
            return
        error = before


def describe(given: tuple[Any, Any]) -> str:
    """Return the shapes and dtypes of the tensors in ``(args, kwargs)``, with where they are."""
    try:
        leaves = list_leaves(given)
    except Exception:  # what was given cannot be walked: say less
        return "what cannot be looked into"
    found = [
        f"{name_argument(path)} {'nested' if leaf.is_nested else tuple(leaf.shape)} "
        f"{str(leaf.dtype).removeprefix('torch.')}"
        for leaf, path in leaves
        if isinstance(leaf, torch.Tensor)
    ]
    return ", ".join(found) or "no tensors"
