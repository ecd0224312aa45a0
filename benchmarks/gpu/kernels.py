"""Operators with sizes, for timing one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from . import operators, sizes
from .operators import Call, backward, one_operand, two_operands

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Kernel:
    """An operator with sizes.

    Attributes:
        family: what the virtual clock takes its time from.
        name: the operator.
        dtype: of its operands; "tf32" is float32 on matrix units.
        sizes: as `make` reads them.
        make: creates the operands and returns the call to time.
    """

    family: str
    name: str
    dtype: str
    sizes: tuple[int, ...]
    make: Callable[..., Call]

    def prepare(self) -> Call:
        torch.backends.cuda.matmul.allow_tf32 = self.dtype == "tf32"
        torch.backends.cudnn.allow_tf32 = self.dtype == "tf32"
        return self.make(DTYPES.get(self.dtype, torch.float32), *self.sizes)


def list_kernels() -> Iterator[Kernel]:
    """Return the kernels to time, each once, always in the same order."""
    for dtype in ("float32", "tf32", "bfloat16"):
        matrices = sizes.LARGE_MATRICES if dtype == "bfloat16" else sizes.MATRICES
        yield from _each("products", "linear", dtype, matrices, operators.linear)
        yield from _each("products", "bmm", dtype, sizes.BATCHES, operators.batched)
    yield from _each("products", "linear", "float16", sizes.LARGE_MATRICES[::4], operators.linear)
    for dtype, is_last in (
        ("float32", False),
        ("tf32", False),
        ("bfloat16", False),
        ("bfloat16", True),
    ):
        for is_backward in (False, True):
            make = operators.convolution(is_last, is_backward)
            name = f"conv2d{' channels last' * is_last}{' backward' * is_backward}"
            yield from _each("convolutions", name, dtype, (*sizes.IMAGES, *sizes.GROUPED), make)
    for is_causal in (False, True):
        for is_backward in (False, True):
            make = operators.attention(is_causal, is_backward)
            name = f"attention{' causal' * is_causal}{' backward' * is_backward}"
            yield from _each("attention", name, "bfloat16", sizes.SEQUENCES, make)
            yield from _each("attention", name, "float32", sizes.SEQUENCES[:4], make)
    for dtype in ("float32", "bfloat16"):
        yield from _memory_bound(dtype)
    for form in ("foreach", "fused"):
        make = operators.adamw(form)
        yield from _each("memory-bound", f"AdamW {form}", "float32", sizes.PARAMETERS, make)


def _each(
    family: str, name: str, dtype: str, each: Iterable[tuple[int, ...]], make: Callable[..., Call]
) -> Iterator[Kernel]:
    return (Kernel(family, name, dtype, size, make) for size in each)


def _memory_bound(dtype: str) -> Iterator[Kernel]:
    def of(name: str, make: Callable[..., Call], each: Any = sizes.ARRAYS) -> Iterator[Kernel]:
        return _each("memory-bound", name, dtype, each, make)

    few, narrow = sizes.ARRAYS[:10:2], (*sizes.ARRAYS[:5], *sizes.ARRAYS[6:])
    yield from of("add", two_operands(torch.add))
    yield from of("multiply by a number", one_operand(lambda x: x * 2.0))
    yield from of("relu", one_operand(functional.relu))
    yield from of("gelu", one_operand(functional.gelu))
    yield from of("gelu backward", backward(functional.gelu))
    yield from of("tanh", one_operand(torch.tanh))
    yield from of("where", two_operands(lambda x, y: torch.where(x > 0, x, y)), few)
    yield from of("add transposed", two_operands(lambda x, y: x.t() + y.view(x.t().shape)))
    yield from of("copy transposed", one_operand(lambda x: x.t().contiguous()))
    yield from of("copy", one_operand(torch.clone))
    yield from of("to the other dtype", one_operand(_to_other))
    yield from of("cat", two_operands(lambda x, y: torch.cat((x, y), 1)), few)
    yield from of("sum", one_operand(torch.sum))
    yield from of("sum of rows", one_operand(lambda x: x.sum(1)))
    yield from of("sum of columns", one_operand(lambda x: x.sum(0)))
    yield from of("softmax", one_operand(lambda x: x.softmax(1)))
    yield from of("softmax backward", backward(lambda x: x.softmax(1)))
    yield from of("softmax of columns", one_operand(lambda x: x.softmax(0)), few)
    yield from of("layer norm", operators.layer_norm(False), narrow)
    yield from of("layer norm backward", operators.layer_norm(True), narrow)
    yield from of("batch norm", operators.batch_norm(False), sizes.NORMED)
    yield from of("batch norm backward", operators.batch_norm(True), sizes.NORMED)
    yield from of("dropout", one_operand(lambda x: functional.dropout(x, 0.1)))
    yield from of("embedding", operators.embedding(False), sizes.WORDS)
    yield from of("embedding backward", operators.embedding(True), sizes.WORDS)
    yield from of("cross entropy", operators.cross_entropy(False), sizes.LOGITS)
    yield from of("cross entropy backward", operators.cross_entropy(True), sizes.LOGITS)
    yield from of("running sum", one_operand(lambda x: x.cumsum(1)), few)
    yield from of("sort", one_operand(lambda x: x.sort(1)[0]), few)
    yield from of("largest of rows", one_operand(lambda x: x.topk(8, 1)[0]), few)


def _to_other(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16 if x.dtype is torch.float32 else torch.float32)
