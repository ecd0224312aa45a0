"""Kernels that a program writes for `torch.cuda.jiterator`.

CUDA compiles their text when they are first called. So does a virtual GPU, for the host, with the
compiler that built it (`host_kernel`). An operator calls them on tensors of the CPU and tells sizes
without data; the device runs it as it runs operators of other libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

# Private: PyTorch's own rules for elementwise operators, which Python has nowhere else. Results
# that came to differ from a sum's in dtype or strides would fail `on_rig/test_jiterator.py`.
from torch._prims_common import (
    ELEMENTWISE_TYPE_PROMOTION_KIND,
    compute_elementwise_output_strides,
    elementwise_dtypes,
)

from .host_kernel import HostKernel, Number

_SCHEMA = (
    "launch(Tensor[] inputs, str text, str name, bool by_reference, int outputs, Scalar[] numbers)"
    " -> Tensor[]"
)

_library: Any = torch.library.Library("anyrig_jiterator", "DEF")  # type: ignore[no-untyped-call]


def bindings() -> dict[str, Any]:
    """Return what PyTorch calls."""
    _library.define(_SCHEMA)
    _library.impl("launch", _compute, "CPU")
    _library.impl("launch", _tell_sizes, "Meta")
    return {"_cuda_jiterator_compile_and_launch_kernel": _launch}


def _launch(
    text: str,
    name: str,
    by_reference: bool,
    outputs: int,
    inputs: Sequence[torch.Tensor],
    numbers: Mapping[str, Number],
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    launch: Callable[..., list[torch.Tensor]] = torch.ops.anyrig_jiterator.launch
    results = launch(list(inputs), text, name, by_reference, outputs, list(numbers.values()))
    return results[0] if outputs == 1 else tuple(results)


def _tell_sizes(
    inputs: Sequence[torch.Tensor],
    text: str,
    name: str,
    by_reference: bool,
    outputs: int,
    numbers: Sequence[Number],
) -> list[torch.Tensor]:
    """Return results without values, laid out as those of PyTorch's own elementwise operators."""
    _, dtype = _dtypes(inputs)
    expanded = torch.broadcast_tensors(*inputs)  # type: ignore[no-untyped-call]
    strides = compute_elementwise_output_strides(*expanded)
    device = inputs[0].device
    return [
        torch.empty_strided(expanded[0].shape, strides, dtype=dtype, device=device)
        for _ in range(outputs)
    ]


def _compute(
    inputs: Sequence[torch.Tensor],
    text: str,
    name: str,
    by_reference: bool,
    outputs: int,
    numbers: Sequence[Number],
) -> list[torch.Tensor]:
    dtype, _ = _dtypes(inputs)
    results = _tell_sizes(inputs, text, name, by_reference, outputs, numbers)
    kinds = tuple(type(number) for number in numbers)
    kernel = HostKernel(text, name, dtype, len(inputs), outputs, by_reference, kinds)
    # The kernel goes through memory, so all operands lie there as the results do.
    operands = [torch.empty_like(results[0], dtype=dtype).copy_(tensor) for tensor in inputs]
    computed = [torch.empty_like(result, dtype=dtype) for result in results]
    kernel.run(computed, operands, numbers)
    return [result.copy_(values) for result, values in zip(results, computed, strict=True)]


def _dtypes(inputs: Sequence[torch.Tensor]) -> tuple[torch.dtype, torch.dtype]:
    """Return what a kernel computes in, float32 for narrower floats, and the dtype of results."""
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    computed, result = elementwise_dtypes(*inputs, type_promotion_kind=kind)
    return computed, result
