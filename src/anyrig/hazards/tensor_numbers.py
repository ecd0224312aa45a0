"""`TensorNumbers`, by which the checks remember tensors without keeping them alive."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..observe.hooks import Replacements


class TensorNumbers:
    """Gives each tensor a number that no other tensor ever gets.

    `torch.utils.swap_tensors`, with which ``module.to`` changes shards and quantized parameters,
    refuses tensors to which weak references exist. So all weak references to parameters and
    gradients are kept here, and taken away for the duration of a swap, after which a tensor has its
    number again.
    """

    def __init__(self) -> None:
        self._count = itertools.count()
        self._numbers: dict[int, int] = {}  # by the id of the tensor
        self._references: dict[int, weakref.ref[Tensor]] = {}  # by the number

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor."""
        number = self._numbers.setdefault(id(tensor), next(self._count))
        if number not in self._references:
            self._refer(tensor, number)
        return number

    def tensor(self, number: int) -> Tensor | None:
        """Return the tensor with a number; None if it no longer exists."""
        reference = self._references.get(number)
        return None if reference is None else reference()

    def start(self, replacements: Replacements) -> None:
        """Let tensors be swapped from now on, until the replacements are undone."""
        replacements.around(torch.utils, "swap_tensors", self._swap)

    def _swap(self, swap: Callable[..., Any], one: Tensor, other: Tensor) -> Any:
        numbers = {id(each): self._numbers.get(id(each)) for each in (one, other)}
        for number in numbers.values():
            self._references.pop(-1 if number is None else number, None)
        try:
            return swap(one, other)
        finally:
            for each in (one, other):
                number = numbers[id(each)]
                if number is not None:
                    self._refer(each, number)

    def _refer(self, tensor: Tensor, number: int) -> None:
        key = id(tensor)

        def forget(_: object) -> None:
            self._references.pop(number, None)
            if self._numbers.get(key) == number:
                self._numbers.pop(key, None)

        self._references[number] = weakref.ref(tensor, forget)
