"""Kernels that a program compiles with `torch.cuda.jiterator`."""

from __future__ import annotations

import pytest
import torch
from torch.cuda.jiterator import _create_jit_fn, _create_multi_output_jit_fn

DEVICE = "cuda:1"

weighted = _create_jit_fn(
    "template <typename T> T weighted(T x, T y, T a, T b) { return a * x + b * y; }", a=1, b=1
)


@pytest.mark.parametrize("first", [torch.float16, torch.int32, torch.bool, torch.complex64])
@pytest.mark.parametrize("second", [torch.float32, torch.bfloat16, torch.uint8])
def test_dtypes_and_layouts_are_those_of_a_sum(first: torch.dtype, second: torch.dtype) -> None:
    x = torch.rand(3, 4, device="cuda").mul(10).to(first).t()
    y = torch.rand(4, 1, device="cuda").mul(10).to(second)
    result, expected = weighted(x, y), x + y
    assert (result.dtype, result.stride(), result.device) == (
        expected.dtype,
        expected.stride(),
        expected.device,
    )
    torch.testing.assert_close(result, expected)


def test_scalars_are_passed_without_recompiling() -> None:
    x, y = torch.rand(2, 5, device=DEVICE, dtype=torch.float64)
    for a, b in ((2.5, -4.25), (0.5, 3.0)):
        torch.testing.assert_close(weighted(x, y, a=a, b=b), a * x + b * y)


def test_a_flag_and_a_second_function() -> None:
    kernel = _create_jit_fn(
        "template <typename T> T hidden(T x, T mask) { return ::max(x, T(0.25)) * mask; }"
        "template <typename T> T drop(T x, T mask, bool train)"
        "{ return train ? hidden(x, mask) : x; }",
        train=False,
    )
    x, mask = torch.rand(2, 6, device="cuda")
    assert torch.equal(kernel(x, mask), x)
    assert torch.equal(kernel(x, mask, train=True), x.clamp(min=0.25) * mask)


def test_several_results_by_reference() -> None:
    kernel = _create_multi_output_jit_fn(
        "template <typename T> void parts(T x, T scale, T& sum, T& product)"
        "{ sum = x + scale; product = x * scale; }",
        num_outputs=2,
        scale=3.0,
    )
    x = torch.rand(4, device="cuda", dtype=torch.bfloat16)
    total, product = kernel(x)
    torch.testing.assert_close(total, x + 3)
    torch.testing.assert_close(product, x * 3)


def test_results_alone_are_counted() -> None:
    x = torch.rand(1024, 3, device="cuda")
    before = torch.cuda.memory_allocated()
    result = weighted(x, x.half())
    del x
    assert torch.cuda.memory_allocated() - before == result.nbytes - 1024 * 3 * 4


def test_text_without_a_kernel_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no_such_function"):
        _create_jit_fn("template <typename T> T f(T x) { return no_such_function(x); }")(
            torch.ones(1, device="cuda")
        )


def test_operands_on_two_devices() -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        weighted(torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1"))


def test_functions_of_cuda_and_complex_numbers() -> None:
    kernel = _create_multi_output_jit_fn(
        "template <typename T> void all(T x, T y, T& a, T& b, T& c, T& d, T& e, T& f)"
        "{ a = max(x, y); b = min(x, y); c = rsqrt(x); d = sinpi(x); e = cospi(x);"
        "  f = T(max(int(x * 10), 4) + min(int(x * 10), 4)); }",
        num_outputs=6,
    )
    x = torch.tensor([0.25, 0.5, 1.5, 1.0], device="cuda")
    y = torch.tensor([0.5, 0.25, 1.5, float("nan")], device="cuda")
    largest, smallest, root, sine, cosine, whole = kernel(x, y)
    torch.testing.assert_close(largest, torch.fmax(x, y))
    torch.testing.assert_close(smallest, torch.fmin(x, y))
    torch.testing.assert_close(root, x.rsqrt())
    torch.testing.assert_close(sine, (x * torch.pi).sin())
    torch.testing.assert_close(cosine, (x * torch.pi).cos())
    assert whole.tolist() == [int(10 * value) + 4 for value in x.tolist()]
    turned = _create_jit_fn(
        "template <typename T> T turned(T x, T by, T plus) { return x * by + plus; }",
        by=1j,
        plus=1.0,
    )
    z = torch.tensor([1 + 2j, 3 - 1j], device="cuda", dtype=torch.complex128)
    torch.testing.assert_close(turned(z), z * 1j + 1)
    torch.testing.assert_close(turned(z, by=2 - 1j, plus=3.0), z * (2 - 1j) + 3)
