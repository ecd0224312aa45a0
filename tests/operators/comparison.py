"""Comparison of the results of a call on the CPU and on a virtual device."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.testing._internal.common_device_type import toleranceOverride
from torch.utils._pytree import tree_flatten


class Mismatch(AssertionError):  # noqa: N818  a finding of a comparison, not a fault of it
    """Results or aliases differ between the CPU and the virtual device."""


def tolerances(entry: Any, dtype: torch.dtype) -> tuple[float, float] | tuple[None, None]:
    """Return the widest (rtol, atol) of PyTorch's overrides for the entry; None for defaults."""
    found = [
        decorator.d[dtype]
        for info in entry.decorators
        for decorator in getattr(info, "decorators", [info])
        if isinstance(decorator, toleranceOverride) and dtype in decorator.d
    ]
    if not found:
        return None, None
    return max(t.rtol for t in found), max(t.atol for t in found)


def compare(
    expected: Any,
    actual: Any,
    devices: Sequence[torch.device],
    *,
    values: bool,
    strides: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
) -> bool:
    """Compare two trees of results; return whether all their numbers are equal bit for bit.

    `devices` are the devices on which the actual results may be.

    Raises:
        Mismatch: in structure, dtype, shape, strides, device, layout, requires_grad or values.
    """
    expected_leaves, expected_spec = tree_flatten(expected)
    actual_leaves, actual_spec = tree_flatten(actual)
    if expected_spec != actual_spec:
        raise Mismatch(f"structure: {expected_spec} and {actual_spec}")
    identical = True
    for position, (a, b) in enumerate(zip(expected_leaves, actual_leaves, strict=True)):
        if not isinstance(a, torch.Tensor):
            if values and not _equal_scalars(a, b):
                raise Mismatch(f"result {position}: {a!r} and {b!r}")
            continue
        _compare_facts(position, a, b, devices, strides)
        if values:
            identical &= _compare_values(position, a, b, rtol, atol)
    return identical


def aliases(results: Sequence[Any], operands: Sequence[torch.Tensor]) -> list[list[int]]:
    """Return for each tensor of the results which operands share its storage."""
    return [
        [i for i, operand in enumerate(operands) if _storage(operand) == _storage(result)]
        for result in tree_flatten(results)[0]
        if isinstance(result, torch.Tensor) and _storage(result) is not None
    ]


def _storage(tensor: torch.Tensor) -> int | None:
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return None
    return tensor.untyped_storage()._cdata


def _equal_scalars(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))


def _compare_facts(
    position: int, a: torch.Tensor, b: torch.Tensor, devices: Sequence[torch.device], strides: bool
) -> None:
    if b.device not in devices:
        raise Mismatch(f"result {position}: is on {b.device}")
    facts = ["dtype", "shape", "layout", "requires_grad"]
    for fact in facts:
        if getattr(a, fact) != getattr(b, fact):
            raise Mismatch(f"result {position}: {fact} {getattr(a, fact)} and {getattr(b, fact)}")
    if (
        strides
        and a.layout == torch.strided
        and not a.is_nested
        and a.numel() > 0
        and _strides_that_matter(a) != _strides_that_matter(b)
    ):
        raise Mismatch(f"result {position}: strides {a.stride()} and {b.stride()}")


def _strides_that_matter(tensor: torch.Tensor) -> list[int]:
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _compare_values(
    position: int, a: torch.Tensor, b: torch.Tensor, rtol: float | None, atol: float | None
) -> bool:
    a, b = a.detach(), b.detach().cpu()
    if a.dtype == torch.complex32:  # the CPU cannot compare complex32
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if a.layout == torch.strided and not a.is_nested and _same_bits(a, b):
        return True
    try:
        torch.testing.assert_close(b, a, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
    except AssertionError as error:
        text = " ".join(str(error).split())
        raise Mismatch(f"result {position}: values: {text[:200]}") from None
    return False


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.equal(_bits(a), _bits(b)))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
    return plain.view(torch.uint8)
