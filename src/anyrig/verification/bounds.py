"""How much two tensors may differ by rounding and by the order of sums.

A difference passes if its norm is at most

    bound * step * (norm of the tensor on one device + 0.001 * norm of all tensors of its kind)

where `step` counts from 1. The second term is for tensors that are zero but for rounding, such as
the gradient of a bias in front of a batch norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

# By the coarsest type that the computation of the loss uses. Mistakes in programs cause larger
# differences: the smallest that we have seen in practice is a few per cent.
BOUNDS = {
    "float64": 1e-9,
    "float32": 1e-4,
    "float16": 1e-2,
    "bfloat16": 5e-2,
}
_PART_OF_ALL = 1e-3


def bound_of(dtypes: Iterable[str]) -> tuple[str, float]:
    """Return the coarsest of the types, and the bound for it."""
    known = [dtype for dtype in dtypes if dtype in BOUNDS] or ["float32"]
    coarsest = max(known, key=BOUNDS.__getitem__)
    return coarsest, BOUNDS[coarsest]


def norm(tensor: Tensor) -> float:
    """Return the Euclidean norm, computed in float64."""
    return float(tensor.double().norm()) if tensor.numel() else 0.0


def norm_of_all(tensors: Mapping[str, Tensor]) -> float:
    """Return the Euclidean norm of all tensors together."""
    return float(sum(norm(one) ** 2 for one in tensors.values()) ** 0.5)


def allowed(bound: float, step: int, expected: Tensor, all_norm: float) -> float:
    """Return the largest norm that the difference from `expected` may have in a step, from 1."""
    return bound * step * (norm(expected) + _PART_OF_ALL * all_norm)


def differs(actual: Tensor, expected: Tensor, limit: float) -> bool:
    """Return whether two tensors differ by more than `limit`, or the difference is NaN."""
    return not norm(actual.double() - expected.double()) <= limit
