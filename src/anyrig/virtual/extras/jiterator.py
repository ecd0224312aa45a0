"""`torch.cuda.jiterator`: elementwise kernels that a program writes in CUDA C++.

PyTorch compiles the source when a kernel is first called. Here the host's C++ compiler compiles the
source (`host_kernel`). Each launch is an operator with a CPU kernel, which calls the compiled code,
and a Meta kernel. Virtual GPUs run this operator like the operators of other libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

# A private module, the only one with PyTorch's rules for elementwise operators in Python.
# `on_rig/test_jiterator.py` compares the dtypes and strides with those of a sum.
from torch._prims_common import (
    ELEMENTWISE_TYPE_PROMOTION_KIND,
    compute_elementwise_output_strides,
    elementwise_dtypes,
)

from .. import rebinding
from .host_kernel import HostKernel, Number

_SCHEMA = (
    "launch(Tensor[] inputs, str text, str name, bool by_reference, int outputs, Scalar[] numbers)"
    " -> Tensor[]"
)

_library: Any = torch.library.Library("anyrig_jiterator", "DEF")  # type: ignore[no-untyped-call]


def patch(_core: ModuleType) -> None:
    """Register the launch operator and bind the function that `torch.cuda.jiterator` calls."""
    _library.define(_SCHEMA)
    _library.impl("launch", _compute, "CPU")
    _library.impl("launch", _allocate_results, "Meta")
    rebinding.bind({"_cuda_jiterator_compile_and_launch_kernel": _launch})


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


def _allocate_results(
    inputs: Sequence[torch.Tensor],
    text: str,
    name: str,
    by_reference: bool,
    outputs: int,
    numbers: Sequence[Number],
) -> list[torch.Tensor]:
    """Allocate the results, with the dtype and strides of PyTorch's elementwise operators."""
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
    results = _allocate_results(inputs, text, name, by_reference, outputs, numbers)
    kinds = tuple(type(number) for number in numbers)
    kernel = HostKernel(text, name, dtype, len(inputs), outputs, by_reference, kinds)
    # The kernel runs linearly through memory, so the operands need the layout of the results.
    operands = [torch.empty_like(results[0], dtype=dtype).copy_(tensor) for tensor in inputs]
    computed = [torch.empty_like(result, dtype=dtype) for result in results]
    kernel.run(computed, operands, numbers)
    return [result.copy_(values) for result, values in zip(results, computed, strict=True)]


def _dtypes(inputs: Sequence[torch.Tensor]) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtype of the computation (float32 for narrower floats) and of the results."""
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    computed, result = elementwise_dtypes(*inputs, type_promotion_kind=kind)
    return computed, result
