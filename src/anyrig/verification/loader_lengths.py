"""What ``len(loader)`` returns: noted in the ranks, and returned on one device.

::

    two ranks     14 batches of 8 samples each      len(loader) is 14
    one device    14 batches of 16, those of both   its own loader would say 28

A program that does something at the end of an epoch, such as a step with the last micro-batches,
finds the end by this number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import DataLoader

from ..observe.hooks import Replacements


class LoaderLengths:
    """Notes the lengths of data loaders, or returns those that were noted.

    Both runs ask the same loaders in the same order, so a loader is known by when it was first
    asked.

    Attributes:
        noted: the lengths, in the order in which loaders were first asked.
    """

    def __init__(self, replayed: Sequence[int] | None = None) -> None:
        self.noted: list[int] = []
        self._replayed = replayed
        self._loaders: list[Any] = []

    def start(self, replacements: Replacements) -> None:
        """Note, or return, lengths until the replacements end."""
        replacements.around(DataLoader, "__len__", self._length)

    def _length(self, length: Callable[[Any], int], loader: Any) -> int:
        found = length(loader)
        number = next((n for n, one in enumerate(self._loaders) if one is loader), None)
        if number is None:
            number = len(self._loaders)
            self._loaders.append(loader)
            self.noted.append(found)
        if self._replayed is None or number >= len(self._replayed):
            return found
        return self._replayed[number]
