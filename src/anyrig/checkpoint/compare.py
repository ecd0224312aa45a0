"""Compare the models of two checkpoints, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_PIECE_ELEMENTS = 1 << 20  # compared at a time, as float64


@dataclass(frozen=True)
class TensorDifference:
    """How far two tensors of one name and shape differ.

    Attributes:
        name: the name of both tensors.
        dtypes: their element types, for example ``("float32", "bfloat16")``.
        largest_absolute: the largest difference of two elements; infinite where exactly one of
            two elements is NaN.
        largest_relative: the largest difference divided by the larger of the two magnitudes.
        different_elements: how many elements differ; two NaNs count as equal.
        elements: how many elements each tensor has.
    """

    name: str
    dtypes: tuple[str, str]
    largest_absolute: float
    largest_relative: float
    different_elements: int
    elements: int


@dataclass(frozen=True)
class Comparison:
    """How the tensors of two checkpoints differ.

    Attributes:
        only_in_first: names missing from the second.
        only_in_second: names missing from the first.
        other_shapes: both shapes of each tensor whose shapes differ, by name.
        differences: tensors whose elements or element types differ, the largest difference first.
        equal: how many tensors are equal.
    """

    only_in_first: tuple[str, ...]
    only_in_second: tuple[str, ...]
    other_shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    differences: tuple[TensorDifference, ...]
    equal: int

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (
            self.only_in_first or self.only_in_second or self.other_shapes or self.differences
        )


def compare(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> Comparison:
    """Return how two sets of tensors on the CPU differ, in bounded memory."""
    shapes = {
        name: (tuple(tensor.shape), tuple(second[name].shape))
        for name, tensor in first.items()
        if name in second and tensor.shape != second[name].shape
    }
    found = [
        compare_tensors(name, tensor, second[name])
        for name, tensor in first.items()
        if name in second and name not in shapes
    ]
    differing = [each for each in found if each.different_elements or len({*each.dtypes}) > 1]
    differing.sort(key=lambda each: (-each.largest_absolute, each.name))
    return Comparison(
        tuple(name for name in first if name not in second),
        tuple(name for name in second if name not in first),
        shapes,
        tuple(differing),
        len(found) - len(differing),
    )


def compare_tensors(name: str, first: Tensor, second: Tensor) -> TensorDifference:
    """Return how two tensors of one shape differ."""
    dtypes = (str(first.dtype).removeprefix("torch."), str(second.dtype).removeprefix("torch."))
    absolute = relative = 0.0
    different = 0
    for raw, other_raw in zip(_pieces(first), _pieces(second), strict=True):
        one, other = _as_wide(raw), _as_wide(other_raw)
        unequal = (one != other) & ~(one.isnan() & other.isnan())
        if {raw.dtype, other_raw.dtype} == {torch.int64}:  # float64 cannot represent all
            unequal = raw != other_raw
        count = int(unequal.sum())
        if not count:
            continue
        different += count
        one, other = one[unequal], other[unequal]
        distance = (one - other).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
        larger = torch.maximum(one.abs(), other.abs())
        ratio = (distance / larger).nan_to_num(nan=float("inf"), posinf=float("inf"))
        absolute = max(absolute, float(distance.max()))
        relative = max(relative, float(ratio.max()))
    return TensorDifference(name, dtypes, absolute, relative, different, first.numel())


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the elements of a tensor in pieces."""
    detached = tensor.detach()
    if detached.is_quantized:
        detached = detached.dequantize()
    if detached.layout is not torch.strided:
        detached = detached.to_dense()
    flat = detached.reshape(-1)
    for start in range(0, flat.numel(), _PIECE_ELEMENTS):
        yield flat[start : start + _PIECE_ELEMENTS]


def _as_wide(piece: Tensor) -> Tensor:
    return piece.to(torch.complex128 if piece.is_complex() else torch.float64)
