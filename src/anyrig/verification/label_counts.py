"""Counting the labels over which losses are averaged."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

_FUNCTIONS = ("cross_entropy", "nll_loss")
_DEFAULT_IGNORED = -100


class LabelCounts:
    """Notes how many labels each call of a classification loss counts."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._originals: dict[str, Callable[..., Any]] = {}

    def start(self) -> None:
        """Watch the functions of PyTorch from now on."""
        for name in _FUNCTIONS:
            self._originals[name] = getattr(nn.functional, name)
            setattr(nn.functional, name, self._counting(self._originals[name]))

    def stop(self) -> None:
        """Watch nothing from now on."""
        for name, original in self._originals.items():
            setattr(nn.functional, name, original)
        self._originals.clear()

    def take(self) -> tuple[int, ...]:
        """Return the counts since the last call."""
        taken = tuple(self._counts)
        self._counts.clear()
        return taken

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def loss(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
            if not target.is_floating_point() and input.requires_grad:
                # The arguments are weight, size_average and ignore_index in both functions.
                given = args[2] if len(args) > 2 else _DEFAULT_IGNORED
                ignored = kwargs.get("ignore_index", given)
                self._counts.append(int((target != ignored).sum()))
            return original(input, target, *args, **kwargs)

        return loss
