"""What ``len(loader)`` returns: recorded in the ranks, and returned on one device.

::

    two ranks     14 batches of 8 samples each      len(loader) is 14
    one device    14 batches of 16, those of both   its own loader would say 28

A program that acts at the end of an epoch, such as by a step with the last micro-batches, counts up
to this number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import DataLoader

from ..observe.hooks import Replacements


class LoaderLengths:
    """Records the lengths of data loaders, and returns those of another run.

    Both runs read the lengths of the same loaders in the same order, so a loader is identified by
    its place in that order.

    Attributes:
        recorded: this run's lengths, in the order in which they were first read.
    """

    def __init__(self, replayed: Sequence[int] = ()) -> None:
        self.recorded: list[int] = []
        self._replayed = replayed
        self._loaders: list[Any] = []

    def start(self, replacements: Replacements) -> None:
        """Replace ``len(loader)`` until `replacements` are restored."""
        replacements.around(DataLoader, "__len__", self._length)

    def _length(self, length: Callable[[Any], int], loader: Any) -> int:
        found = length(loader)
        number = next((n for n, one in enumerate(self._loaders) if one is loader), None)
        if number is None:
            number = len(self._loaders)
            self._loaders.append(loader)
            self.recorded.append(found)
        return self._replayed[number] if number < len(self._replayed) else found
