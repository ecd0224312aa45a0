"""Counting the labels over which losses are averaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..observe.hooks import Replacements

_FUNCTIONS = ("cross_entropy", "nll_loss")
_DEFAULT_IGNORED = -100


class LabelCounts:
    """Notes how many labels each call of a classification loss counts."""

    def __init__(self) -> None:
        self._counts: list[int] = []

    def start(self, replacements: Replacements) -> None:
        """Watch the functions of PyTorch from now on, until the replacements are undone."""
        for name in _FUNCTIONS:
            replacements.around(nn.functional, name, self._count)

    def take(self) -> tuple[int, ...]:
        """Return the counts since the last call."""
        taken = tuple(self._counts)
        self._counts.clear()
        return taken

    def _count(
        self,
        loss: Callable[..., Any],
        input: Tensor,  # noqa: A002 - the name of PyTorch's parameter
        target: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not target.is_floating_point() and input.requires_grad:
            # The arguments are weight, size_average and ignore_index in both functions.
            given = args[2] if len(args) > 2 else _DEFAULT_IGNORED
            ignored = kwargs.get("ignore_index", given)
            self._counts.append(int((target != ignored).sum()))
        return loss(input, target, *args, **kwargs)
