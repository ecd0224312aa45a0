"""Elementwise functions in CUDA C++, compiled for the host once and cached.

The source is a template with one type parameter, as `torch.cuda.jiterator` takes it. `HostKernel`
adds a loop over the elements and the CUDA functions that standard C++ does not have.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..compiler import Compiler
from ..compiler_processes import CompilerProcesses
from ..library_cache import build_once, cache_folder

Number = bool | int | float | complex

_TYPES = {
    torch.bool: "bool",
    torch.uint8: "std::uint8_t",
    torch.int8: "std::int8_t",
    torch.int16: "std::int16_t",
    torch.int32: "std::int32_t",
    torch.int64: "std::int64_t",
    torch.float32: "float",
    torch.float64: "double",
    torch.complex64: "std::complex<float>",
    torch.complex128: "std::complex<double>",
}

_FLAGS = ("-std=c++20", "-shared", "-fPIC", "-O2", "-w")

_FUNCTIONS_OF_CUDA = """
#include <complex>
#include <cstdint>
#include <type_traits>
#include <math.h>
#include <stdlib.h>
#define __device__
#define __host__
#define __forceinline__ inline
template <typename A, typename B> std::common_type_t<A, B> min(A a, B b) {
  if constexpr (std::is_floating_point_v<std::common_type_t<A, B>>) return std::fmin(a, b);
  else return b < a ? b : a;
}
template <typename A, typename B> std::common_type_t<A, B> max(A a, B b) {
  if constexpr (std::is_floating_point_v<std::common_type_t<A, B>>) return std::fmax(a, b);
  else return a < b ? b : a;
}
template <typename T> T rsqrt(T x) { return T(1) / std::sqrt(x); }
template <typename T> T sinpi(T x) { return std::sin(x * T(M_PI)); }
template <typename T> T cospi(T x) { return std::cos(x * T(M_PI)); }
"""


# The C++ type of each Python number, and the ctypes type that passes it.
_NUMBERS: dict[type, tuple[str, Any]] = {
    bool: ("bool", ctypes.c_bool),
    int: ("std::int64_t", ctypes.c_int64),
    float: ("double", ctypes.c_double),
    complex: ("std::complex<double>", ctypes.c_double * 2),
}


@dataclass(frozen=True)
class HostKernel:
    """One instantiation of a kernel template.

    Attributes:
        text: the C++ source of the template and of the functions that it calls.
        name: the name of the template.
        dtype: the dtype of the computation and of all operands.
        inputs: the number of input tensors.
        outputs: the number of output tensors.
        by_reference: whether the template takes its results as references, after all arguments.
        number_types: the types of the scalar arguments, which follow the inputs.
    """

    text: str
    name: str
    dtype: torch.dtype
    inputs: int
    outputs: int
    by_reference: bool
    number_types: tuple[type, ...]

    def run(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        numbers: Sequence[Number],
    ) -> None:
        """Compute `outputs` from `inputs` and `numbers`.

        All tensors are on the CPU, with the same dtype, shape and strides and without gaps.

        Raises:
            BuildError: the source does not compile; the message contains the compiler's errors.
        """
        values = [_value(number) for number in numbers]
        pointers = [tensor.data_ptr() for tensor in (*outputs, *inputs)]
        pointers += [ctypes.addressof(value) for value in values]
        _load(self._source())(outputs[0].numel(), (ctypes.c_void_p * len(pointers))(*pointers))

    def _source(self) -> str:
        scalar = _TYPES[self.dtype]
        outputs = [f"output_{i}" for i in range(self.outputs)]
        inputs = [f"input_{i}" for i in range(self.inputs)]
        numbers = [f"number_{i}" for i in range(len(self.number_types))]
        types = [scalar] * (self.outputs + self.inputs)
        types += [_NUMBERS[kind][0] for kind in self.number_types]
        declared = [
            f"auto* {pointer} = static_cast<{type_}*>(operands[{index}]);"
            for index, (pointer, type_) in enumerate(
                zip(outputs + inputs + numbers, types, strict=True)
            )
        ]
        arguments = [f"{name}[element]" for name in inputs] + [f"*{name}" for name in numbers]
        results = [f"{name}[element]" for name in outputs]
        call = f"{self.name}<{scalar}>"
        if self.by_reference:
            statement = f"{call}({', '.join(arguments + results)});"
        else:
            statement = f"{results[0]} = {call}({', '.join(arguments)});"
        return "\n".join(
            [
                _FUNCTIONS_OF_CUDA,
                self.text,
                'extern "C" void run(std::int64_t elements, void* const* operands) {',
                *declared,
                f"for (std::int64_t element = 0; element < elements; ++element) {{ {statement} }}",
                "}",
            ]
        )


def _value(number: Number) -> Any:
    hand_over = _NUMBERS[type(number)][1]
    if isinstance(number, complex):
        return hand_over(number.real, number.imag)
    return hand_over(number)


@functools.cache
def _load(source: str) -> Callable[[int, Any], None]:
    compiler = Compiler.find()
    parts = (*compiler.command, compiler.version, *_FLAGS, source)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    library = cache_folder() / "jiterator" / key / "kernel.so"
    build_once(library, functools.partial(_compile, compiler, source))
    run = ctypes.CDLL(os.fspath(library)).run
    run.argtypes = [ctypes.c_int64, ctypes.c_void_p]
    run.restype = None
    return run


def _compile(compiler: Compiler, source: str, folder: Path) -> Path:
    text, built = folder / "kernel.cpp", folder / "kernel.so"
    text.write_text(source)
    command = [*compiler.command, *_FLAGS, str(text), "-o", str(built)]
    with CompilerProcesses(1, folder) as processes:
        processes.start(command, "the jiterator kernel could not be compiled").result()
    return built
