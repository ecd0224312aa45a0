"""Notes on an exception, which its traceback shows."""

from __future__ import annotations

from typing import Any

import torch

from ..transfer.tree import list_leaves
from .parts.samples import name_argument


class Note(Exception):  # noqa: N818 - not an error
    """Shows a note in the tracebacks of Python 3.10, whose exceptions have no notes."""


def add_note(error: BaseException, text: str) -> None:
    """Add ``[anyrig: text]`` to an exception's traceback, once, and change nothing else."""
    note = f"[anyrig: {text}]"
    if not hasattr(error, "add_note"):  # Python 3.10
        add_as_cause(error, note)
    elif note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def add_as_cause(error: BaseException, note: str) -> None:
    """Put `note` at the top of a traceback: before the first exception that led to `error`."""
    seen = set()
    while id(error) not in seen:
        seen.add(id(error))
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if before is None:
            if not isinstance(error, Note):
                error.__cause__ = Note(note)
            return
        error = before


def describe_arguments(given: tuple[Any, Any]) -> str:
    """Return the shapes of ``(args, kwargs)`` for a note."""
    try:
        leaves = list_leaves(given)
    except Exception:  # the arguments contain themselves, for example
        return "arguments that cannot be listed"
    found = [
        f"{name_argument(path)} {'nested' if leaf.is_nested else tuple(leaf.shape)} "
        f"{str(leaf.dtype).removeprefix('torch.')}"
        for leaf, path in leaves
        if isinstance(leaf, torch.Tensor)
    ]
    return ", ".join(found) or "no tensors"
