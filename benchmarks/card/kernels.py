"""Operators with sizes, for timing one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Call = Callable[[], Any]
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


def random(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def gradients_of(output: Tensor, *inputs: Tensor) -> Call:
    given = torch.randn_like(output)
    return lambda: torch.autograd.grad(output, inputs, given, retain_graph=True)


def linear(dtype: torch.dtype, m: int, n: int, k: int) -> Call:
    x, weight, bias = random(dtype, m, k), random(dtype, n, k), random(dtype, n)
    return lambda: functional.linear(x, weight, bias)


def batched(dtype: torch.dtype, count: int, m: int, n: int, k: int) -> Call:
    left, right = random(dtype, count, m, k), random(dtype, count, k, n)
    return lambda: torch.bmm(left, right)


def _image(
    dtype: torch.dtype, batch: int, channels: int, out: int, size: int, kernel: int, groups: int
) -> tuple[Tensor, Tensor]:
    return (
        random(dtype, batch, channels, size, size),
        random(dtype, out, channels // groups, kernel, kernel),
    )


def convolution(is_last: bool, is_backward: bool) -> Callable[..., Call]:
    order = torch.channels_last if is_last else torch.contiguous_format

    def make(
        dtype: torch.dtype,
        batch: int,
        channels: int,
        out: int,
        size: int,
        kernel: int,
        stride: int,
        groups: int = 1,
    ) -> Call:
        x, weight = (
            one.to(memory_format=order).requires_grad_(is_backward)
            for one in _image(dtype, batch, channels, out, size, kernel, groups)
        )
        form = {"stride": stride, "padding": kernel // 2, "groups": groups}
        if is_backward:
            return gradients_of(functional.conv2d(x, weight, **form), x, weight)
        return lambda: functional.conv2d(x, weight, **form)

    return make


def attention(is_causal: bool, is_backward: bool) -> Callable[..., Call]:
    def make(dtype: torch.dtype, batch: int, heads: int, length: int, width: int) -> Call:
        q, k, v = (
            random(dtype, batch, length, heads, width).transpose(1, 2).requires_grad_(is_backward)
            for _ in range(3)
        )
        if is_backward:
            output = functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
            return gradients_of(output, q, k, v)
        return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    return make


def one_operand(function: Callable[[Tensor], Any]) -> Callable[..., Call]:
    def make(dtype: torch.dtype, rows: int, columns: int) -> Call:
        x = random(dtype, rows, columns)
        return lambda: function(x)

    return make


def two_operands(function: Callable[[Tensor, Tensor], Any]) -> Callable[..., Call]:
    def make(dtype: torch.dtype, rows: int, columns: int) -> Call:
        x, y = random(dtype, rows, columns), random(dtype, rows, columns)
        return lambda: function(x, y)

    return make


def backward(function: Callable[[Tensor], Tensor]) -> Callable[..., Call]:
    def make(dtype: torch.dtype, rows: int, columns: int) -> Call:
        x = random(dtype, rows, columns).requires_grad_()
        return gradients_of(function(x), x)

    return make


def layer_norm(is_backward: bool) -> Callable[..., Call]:
    def make(dtype: torch.dtype, rows: int, columns: int) -> Call:
        x = random(dtype, rows, columns).requires_grad_(is_backward)
        weight, bias = (random(dtype, columns).requires_grad_(is_backward) for _ in range(2))
        if is_backward:
            output = functional.layer_norm(x, (columns,), weight, bias)
            return gradients_of(output, x, weight, bias)
        return lambda: functional.layer_norm(x, (columns,), weight, bias)

    return make


def batch_norm(is_backward: bool) -> Callable[..., Call]:
    def make(dtype: torch.dtype, batch: int, channels: int, size: int) -> Call:
        x = random(dtype, batch, channels, size, size).to(memory_format=torch.channels_last)
        x.requires_grad_(is_backward)
        weight, bias = (
            random(torch.float32, channels).requires_grad_(is_backward) for _ in range(2)
        )
        mean, variance = random(torch.float32, channels), random(torch.float32, channels).abs()
        if is_backward:
            output = functional.batch_norm(x, mean, variance, weight, bias, True)
            return gradients_of(output, x, weight, bias)
        return lambda: functional.batch_norm(x, mean, variance, weight, bias, True)

    return make


def embedding(is_backward: bool) -> Callable[..., Call]:
    def make(dtype: torch.dtype, words: int, width: int, tokens: int) -> Call:
        weight = random(dtype, words, width).requires_grad_(is_backward)
        ids = torch.randint(words, (tokens,), device="cuda")
        if is_backward:
            return gradients_of(functional.embedding(ids, weight), weight)
        return lambda: functional.embedding(ids, weight)

    return make


def cross_entropy(is_backward: bool) -> Callable[..., Call]:
    def make(dtype: torch.dtype, rows: int, columns: int) -> Call:
        x = random(dtype, rows, columns).requires_grad_(is_backward)
        labels = torch.randint(columns, (rows,), device="cuda")
        if is_backward:
            return gradients_of(functional.cross_entropy(x, labels), x)
        return lambda: functional.cross_entropy(x, labels)

    return make


def adamw(form: str) -> Callable[..., Call]:
    def make(dtype: torch.dtype, count: int, side: int) -> Call:
        parameters = [random(dtype, side, side).requires_grad_() for _ in range(count)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        step = torch.optim.AdamW(parameters, 1e-4, capturable=True, **{form: True}).step
        return step

    return make


MATRICES = (
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 2304, 768),
    (8192, 768, 3072),
    (4096, 4096, 1024),
    (2048, 50304, 768),
    (256, 4096, 4096),
    (128, 1000, 2048),
    (16384, 1024, 1024),
    (1000, 3000, 700),
)
LARGE_MATRICES = (*MATRICES, (8192, 8192, 8192), (16384, 4096, 4096), (32, 8192, 8192))
BATCHES = (
    (192, 1024, 1024, 64),
    (192, 1024, 64, 1024),
    (64, 512, 512, 64),
    (16, 2048, 2048, 128),
    (512, 128, 128, 64),
    (32, 197, 197, 64),
)
IMAGES = (
    (64, 3, 64, 224, 7, 2),
    (64, 64, 64, 56, 3, 1),
    (64, 64, 256, 56, 1, 1),
    (64, 128, 128, 28, 3, 1),
    (64, 256, 1024, 14, 1, 1),
    (64, 256, 256, 14, 3, 1),
    (64, 512, 512, 7, 3, 1),
    (64, 512, 1024, 28, 1, 2),
    (16, 128, 128, 112, 3, 1),
)
GROUPED = ((64, 96, 96, 56, 3, 1, 96), (64, 384, 384, 14, 5, 1, 384), (64, 256, 256, 28, 3, 1, 32))
SEQUENCES = ((16, 12, 1024, 64), (8, 16, 2048, 64), (4, 16, 4096, 128), (32, 16, 512, 64))
MORE_SEQUENCES = (*SEQUENCES, (128, 12, 197, 64), (1, 32, 8192, 128))
ARRAYS = ((8192, 4096), (16384, 8192), (1024, 1024), (16384, 768), (98304, 128), (2048, 50304))


def list_kernels() -> Iterator[Kernel]:
    for dtype, sizes in (("float32", MATRICES), ("tf32", MATRICES), ("bfloat16", LARGE_MATRICES)):
        yield from (Kernel("products", "linear", dtype, size, linear) for size in sizes)
        yield from (Kernel("products", "bmm", dtype, size, batched) for size in BATCHES)
    yield from (Kernel("products", "linear", "float16", s, linear) for s in LARGE_MATRICES[::4])
    for dtype, is_last in (
        ("float32", False),
        ("tf32", False),
        ("bfloat16", False),
        ("bfloat16", True),
    ):
        for is_backward in (False, True):
            make = convolution(is_last, is_backward)
            name = f"conv2d{' channels last' * is_last}{' backward' * is_backward}"
            for size in (*IMAGES, *GROUPED):
                yield Kernel("convolutions", name, dtype, size, make)
    for is_causal in (False, True):
        for is_backward in (False, True):
            make = attention(is_causal, is_backward)
            name = f"attention{' causal' * is_causal}{' backward' * is_backward}"
            for size in MORE_SEQUENCES:
                yield Kernel("attention", name, "bfloat16", size, make)
            for size in SEQUENCES[:2]:
                yield Kernel("attention", name, "float32", size, make)
    for dtype in ("float32", "bfloat16"):
        yield from _memory_bound(dtype)
    for form in ("foreach", "fused"):
        for size in ((100, 1024), (400, 256), (16, 4096)):
            yield Kernel("memory-bound", f"AdamW {form}", "float32", size, adamw(form))


def _memory_bound(dtype: str) -> Iterator[Kernel]:
    def of(name: str, make: Callable[..., Call], sizes: Any = ARRAYS) -> Iterator[Kernel]:
        for size in sizes:
            yield Kernel("memory-bound", name, dtype, size, make)

    yield from of("add", two_operands(torch.add))
    yield from of("multiply by a number", one_operand(lambda x: x * 2.0))
    yield from of("relu", one_operand(functional.relu))
    yield from of("gelu", one_operand(functional.gelu))
    yield from of("gelu backward", backward(functional.gelu))
    yield from of("tanh", one_operand(torch.tanh))
    yield from of("where", two_operands(lambda x, y: torch.where(x > 0, x, y)), ARRAYS[:3])
    yield from of("add transposed", two_operands(lambda x, y: x.t() + y.view(x.t().shape)))
    yield from of("copy transposed", one_operand(lambda x: x.t().contiguous()))
    yield from of("copy", one_operand(torch.clone))
    yield from of("to the other dtype", one_operand(_to_other))
    yield from of("cat", two_operands(lambda x, y: torch.cat((x, y), 1)), ARRAYS[:4])
    yield from of("sum", one_operand(torch.sum))
    yield from of("sum of rows", one_operand(lambda x: x.sum(1)))
    yield from of("sum of columns", one_operand(lambda x: x.sum(0)))
    yield from of("softmax", one_operand(lambda x: x.softmax(1)))
    yield from of("softmax backward", backward(lambda x: x.softmax(1)))
    yield from of("layer norm", layer_norm(False), ARRAYS[:5])
    yield from of("layer norm backward", layer_norm(True), ARRAYS[:5])
    images = ((64, 64, 56), (64, 256, 56), (64, 512, 14), (64, 2048, 7))
    yield from of("batch norm", batch_norm(False), images)
    yield from of("batch norm backward", batch_norm(True), images)
    yield from of("dropout", one_operand(lambda x: functional.dropout(x, 0.1)))
    words = ((50304, 768, 16384), (32000, 4096, 4096), (30522, 1024, 8192))
    yield from of("embedding", embedding(False), words)
    yield from of("embedding backward", embedding(True), words)
    yield from of("cross entropy", cross_entropy(False), ((8192, 50304), (2048, 50304)))
    yield from of("cross entropy backward", cross_entropy(True), ((8192, 50304), (2048, 50304)))
    yield from of("running sum", one_operand(lambda x: x.cumsum(1)), ARRAYS[:4])
    yield from of("sort", one_operand(lambda x: x.sort(1)[0]), ARRAYS[:4])
    yield from of("largest of rows", one_operand(lambda x: x.topk(8, 1)[0]), ARRAYS[:4])


def _to_other(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16 if x.dtype is torch.float32 else torch.float32)
