"""Whether the number of a part of a batch follows from those of the part's halves.

::

    a part     8 samples   0.61
    its halves 4 + 4       0.70 and 0.40, so 0.55 over samples: a mean over what a mask selects

What does not follow from halves does not follow from the parts on the devices either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .means_of_parts import computing_part


@dataclass(frozen=True)
class Value:
    """What a loss, or a module, has returned.

    Attributes:
        value: the number, or the sum of ``(sum, count)``.
        count: the count of ``(sum, count)``.
        precision: what rounding may change, relative to the largest term.
    """

    value: float
    count: float | None
    precision: float

    @classmethod
    def of(cls, returned: Any, least_precision: float = 0.0) -> Value | None:
        """Return the numbers of what was returned; None if it is not a number."""
        count = None
        if isinstance(returned, tuple) and len(returned) == 2:
            returned, count = returned
        if not isinstance(returned, Tensor) or returned.numel() != 1 or returned.is_complex():
            return None
        if returned.dim() and count is None:
            return None
        precision = max(least_precision, math.sqrt(torch.finfo(returned.dtype).eps))
        return cls(float(returned), None if count is None else float(count), precision)

    @property
    def is_finite(self) -> bool:
        """Whether the numbers can be compared."""
        return math.isfinite(self.value) and math.isfinite(self.count or 0.0)

    def __str__(self) -> str:
        return f"{self.value:.6g}" if self.count is None else f"({self.value:.6g}, {self.count:g})"


def follows(
    whole: Value, parts: Sequence[Value | None], counts: tuple[int, int], is_sum: bool
) -> bool:
    """Return whether the value of the whole follows from those of its two parts."""
    first, second = parts
    if first is None or second is None or (first.count is None) != (whole.count is None):
        return False
    adds = is_sum or whole.count is not None
    weights = (1.0, 1.0) if adds else tuple(count / sum(counts) for count in counts)

    def is_close(value: float, one: float, other: float) -> bool:
        terms = weights[0] * one, weights[1] * other
        scale = max(abs(value), *map(abs, terms))
        return math.isclose(sum(terms), value, rel_tol=0, abs_tol=whole.precision * scale)

    return is_close(whole.value, first.value, second.value) and is_close(
        whole.count or 0.0, first.count or 0.0, second.count or 0.0
    )


def has_values(tensor: Tensor) -> bool:
    """Return whether a tensor has values that can be compared, each of which equals itself.

    A rehearsal that assumes values says that it does not, as the answer to each question is 1.
    """
    return not bool((tensor != tensor).any())


class _CommunicatesError(Exception):
    """The code communicates with other ranks, which do not repeat the computation."""


class _WithoutCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace:
            raise _CommunicatesError
        return func(*args, **(kwargs or {}))


@contextmanager
def without_collectives() -> Iterator[None]:
    """Raise an error where the code of this block communicates with other ranks."""
    with _WithoutCollectives():  # type: ignore[no-untyped-call]
        yield


def compute_half(compute: Callable[[], Any], totals: list[Tensor], share: float) -> Any:
    """Call a function for a half that has `share` of the samples of a part.

    `totals` are what the means over targets of the part divide by, in order.
    """
    left = iter(totals)
    with computing_part(lambda own: (next(left, own), share)):
        return compute()
