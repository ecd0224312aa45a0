"""A batch without rows, for a rank whose loader has ended before those of others.

A rank that had a batch knows its structure from that one. It leaves an outline at the board, for
ranks that never have any::

    {"image": tensor (0, 3, 8),  ──▶  {"dict": {"image": {"tensor": ["float32", [0, 3, 8], 0]},
     "name": []}                                "name": {"list": []}}}

The outline is JSON and no pickle, which could run anything where it is loaded. So it takes what
loaders mostly yield: dicts, lists and tuples of dense tensors, numbers, texts and None.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ....errors import BatchError, MoveError
from ..leaves import is_dense
from .part import GIVE_EMPTY, part_of, rows_of
from .turns import Turns

_UNKNOWN = object()
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


class EmptyBatch:
    """What one rank knows of the empty batches of one loader.

    Args:
        make: returns one; None to have it follow from the loader's batches.
        turns: of the loader.
    """

    def __init__(self, make: Callable[[], Any] | None, turns: Turns) -> None:
        self._make = make
        self._turns = turns
        self._key = f"{turns.name}/empty"
        self._known: list[Any] = []

    def learn(self, batch: Any) -> None:
        """Keep the structure of this rank's first batch, and leave it for others."""
        board = self._turns.board
        if board is None or self._make is not None or self._known:
            return
        try:
            empty = part_of(batch, slice(0, 0), rows_of(batch))
        except (BatchError, MoveError):
            empty = _UNKNOWN
        self._known.append(empty)
        outline = write_outline(empty)
        if outline is not None:
            board.post(self._key, outline)

    def get(self) -> Any:
        """Return a batch without rows.

        Raises:
            BatchError: it cannot be told from the loader's batches what that is.
        """
        if self._make is not None:
            return self._make()
        if not self._known and self._turns.board is not None:
            (outline,) = self._turns.board.look([self._key])
            self._known.append(_UNKNOWN if outline is None else read_outline(outline))
        if self._known[0] is _UNKNOWN:
            raise BatchError(
                f"rank {self._turns.rank} has no batch left, while others have, and it cannot be "
                f"told from this loader's batches what one without rows is. {GIVE_EMPTY}"
            )
        return self._known[0]


def write_outline(batch: Any) -> bytes | None:
    """Return the text of a batch without rows; None if it has anything of another type.

    Of tensors it has the dtype and the shape, and of those without dimensions the value.
    """
    try:
        return json.dumps(_outline(batch)).encode()
    except _NotPlainError:
        return None


def read_outline(text: bytes) -> Any:
    """Return the batch, its tensors on the CPU."""
    return _batch(json.loads(text))


class _NotPlainError(Exception):
    pass


def _outline(value: Any) -> dict[str, Any]:
    kind = type(value)
    if kind in (list, tuple):
        return {kind.__name__: [_outline(item) for item in value]}
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": {key: _outline(item) for key, item in value.items()}}
    if kind in (type(None), bool, int, float, str):
        return {"value": value}
    if kind is Tensor and is_dense(value) and not value.is_complex():
        if not value.dim() or not value.numel():
            dtype = str(value.dtype).removeprefix("torch.")
            return {"tensor": [dtype, list(value.shape), 0 if value.dim() else value.item()]}
    raise _NotPlainError


def _batch(outline: dict[str, Any]) -> Any:
    ((kind, content),) = outline.items()
    match kind:
        case "tensor":
            dtype, shape, value = content
            return torch.full(shape, value, dtype=_DTYPES[dtype], device="cpu")
        case "value":
            return content
        case "dict":
            return {key: _batch(item) for key, item in content.items()}
        case "list":
            return [_batch(item) for item in content]
        case "tuple":
            return tuple(_batch(item) for item in content)
    raise ValueError(f"an empty batch has no part of kind {kind!r}")
