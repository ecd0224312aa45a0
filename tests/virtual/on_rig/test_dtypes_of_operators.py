"""Dtypes that CUDA supports and the CPU does not, and the reverse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from refused_dtypes import KERNELS, WORDS, check_refusals, check_words
from torch import Tensor
from torch.nn import functional

DEVICE = torch.device("cuda", 1)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_half_precision_where_the_cpu_has_none() -> None:
    numbers = torch.arange(8.0)
    there = numbers.to(DEVICE).half()
    spectrum = torch.fft.rfft(there)
    assert spectrum.dtype == torch.complex32
    torch.testing.assert_close(
        spectrum.to(torch.complex64).cpu(), torch.fft.rfft(numbers), rtol=1e-3, atol=1e-3
    )
    torch.testing.assert_close(torch.fft.irfft(spectrum), there, rtol=1e-3, atol=2e-3)


def test_half_precision_gradients_where_the_cpu_has_none() -> None:
    x = torch.arange(64.0).view(1, 1, 4, 4, 4)
    gradients = []
    for tensor in (x.clone(), x.to(DEVICE).half()):
        tensor.requires_grad_()
        functional.avg_pool3d(tensor, 2).sum().backward()
        gradients.append(tensor.grad.cpu().float())
    torch.testing.assert_close(*gradients)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_averages_of_complex_halves_in_a_wider_dtype() -> None:
    numbers = torch.tensor([[1 + 2j, 3 + 4j]], dtype=torch.complex32, device=DEVICE)
    for dimensions in ([], [1]):
        average = numbers.mean(*dimensions, dtype=torch.complex64)
        assert average.dtype == torch.complex64
        assert average.tolist() == ([2 + 3j] if dimensions else 2 + 3j)
    with pytest.raises(NotImplementedError, match='"mean_cuda" not implemented'):
        numbers.mean(1, dtype=torch.complex32)


def test_histogram_of_integers() -> None:
    counts = torch.histc(torch.tensor([1, 2, 2], device=DEVICE), bins=2)
    assert counts.dtype == torch.long
    assert counts.tolist() == [1, 2]


def test_the_result_goes_where_out_says() -> None:
    out = torch.empty(0, dtype=torch.half, device=DEVICE)
    x = torch.ones(1, 1, 2, 2, 2, dtype=torch.half, device=DEVICE)
    assert torch._C._nn.avg_pool3d(x, 2, out=out) is out
    assert out.shape == (1, 1, 1, 1, 1)
    assert out.item() == 1


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], torch.dtype, str]] = {
    "mm": (lambda x: x @ x, torch.long, "addmm_cuda"),
    "addmm": (lambda x: torch.addmm(x, x, x), torch.int, "addmm_cuda"),
    "bmm": (lambda x: x[None] @ x[None], torch.long, "baddbmm_cuda"),
    "mm of truths": (lambda x: x @ x, torch.bool, "addmm_cuda"),
    "mm of eight bits": (lambda x: x @ x, torch.float8_e4m3fn, "addmm_cuda"),
    "mv": (lambda x: x @ x[0], torch.long, "addmv_impl_cuda"),
    "dot": (lambda x: x[0] @ x[0], torch.long, "dot"),
    "linear": (lambda x: functional.linear(x, x), torch.long, "addmm_cuda"),
    "products": (
        lambda x: x.scatter_reduce(0, torch.zeros_like(x, dtype=torch.long), x, "prod"),
        torch.cfloat,
        "cuda_scatter_gather_base_kernel_func",
    ),
    "products of truths": (
        lambda x: x.scatter_reduce(0, torch.zeros_like(x, dtype=torch.long), x, "prod"),
        torch.bool,
        "cuda_scatter_gather_base_kernel_func",
    ),
    "igamma": (lambda x: torch.igamma(x, x), torch.half, "igamma_cuda"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_dtypes_refused_on_cuda(case: str) -> None:
    call, dtype, kernel = REFUSED[case]
    call(torch.ones(2, 2))
    call(torch.ones(2, 2, device=DEVICE))
    with pytest.raises(NotImplementedError, match=f'"{kernel}" not implemented for '):
        call(torch.ones(2, 2, device=DEVICE).to(dtype))


def test_convolutions_of_integers_are_refused() -> None:
    x = torch.ones(1, 1, 2, 2, dtype=torch.long, device=DEVICE)
    with pytest.raises(RuntimeError, match=r"FromScalarType\(\) not supported for Long"):
        functional.conv2d(x, x)
    with pytest.raises(RuntimeError, match=r"FromScalarType\(\) not supported for Bool"):
        functional.conv2d(x.bool(), x.bool())
    with pytest.raises(RuntimeError, match="GET was unable to find an engine"):
        functional.conv2d(x.int(), x.int())
    with (
        torch.backends.cudnn.flags(enabled=False),
        pytest.raises(NotImplementedError, match="\"slow_conv2d_cuda\" not implemented for 'Long'"),
    ):
        functional.conv2d(x, x)


def test_products_without_elements_are_refused_in_no_dtype() -> None:
    # CUDA launches no kernel for them.
    rows, columns = (torch.ones(n, 3, dtype=torch.long, device=DEVICE) for n in (0, 2))
    assert (rows @ columns.t()).shape == (0, 2)


REFUSED_BY_BOTH: dict[str, Callable[[Tensor], Tensor]] = {
    "GeluCUDAKernelImpl": functional.gelu,
    "silu_cuda": functional.silu,
    "host_softmax": lambda x: x.softmax(-1),
    "leaky_relu_cuda": functional.leaky_relu,
    "batch_norm_stats_cuda": lambda x: functional.batch_norm(x, None, None, training=True),
    "adaptive_avg_pool2d_cuda": lambda x: functional.adaptive_avg_pool2d(x[None, None], (2, 1)),
}


@pytest.mark.parametrize("kernel", REFUSED_BY_BOTH)
def test_refusals_of_the_cpu_get_cudas_kernel_name(kernel: str) -> None:
    call = REFUSED_BY_BOTH[kernel]
    with pytest.raises(RuntimeError, match=f"^\"{kernel}\" not implemented for 'Long'$"):
        call(torch.ones(2, 2, dtype=torch.long, device=DEVICE))


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_kernel_refuses_its_dtypes(kernel: str) -> None:
    check_refusals(kernel, DEVICE)


@pytest.mark.parametrize("words", WORDS)
def test_refusals_that_name_no_kernel(words: str) -> None:
    check_words(words, DEVICE)


@pytest.mark.parametrize("name", ["exp", "sin", "log", "sqrt", "tanh"])
def test_eight_bit_floats_have_no_functions(name: str) -> None:
    x = torch.ones(2, device=DEVICE).to(torch.float8_e4m3fn)
    with pytest.raises(NotImplementedError, match=f'"{name}_cuda" not implemented for'):
        getattr(torch, name)(x)


COMPLEX_HALF = (
    "acos acosh asin asinh atan atanh cos cosh sin sinh tan tanh exp log sqrt rsqrt angle "
    "sigmoid sgn prod sum"
).split()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("name", COMPLEX_HALF)
def test_complex_numbers_in_half_precision(name: str) -> None:
    numbers = torch.tensor([0.5 + 0.25j, 0.75 - 0.5j])
    there = getattr(torch, name)(numbers.to(DEVICE, torch.complex32))
    assert there.dtype in (torch.complex32, torch.half)
    expected = getattr(torch, name)(numbers)
    wider = there.cpu().to(expected.dtype)
    torch.testing.assert_close(wider, expected, rtol=5e-3, atol=5e-3)


def test_bools_where_the_cpu_supports_none() -> None:
    truths = torch.eye(3, device=DEVICE, dtype=torch.bool)
    assert torch.trace(truths).item() == 3
    assert truths.abs().dtype == torch.bool
    assert torch.equal(truths.abs(), truths)
    assert truths.median().dtype == torch.bool
    assert [truths.median().item(), truths[:, 0].nanmedian().item()] == [False, False]


def test_factors_of_two_dtypes() -> None:
    x = torch.ones(2, 2, device=DEVICE)
    with pytest.raises(
        RuntimeError, match="expected mat1 and mat2 to have the same dtype, but got"
    ):
        torch.mm(x, x.half())


def test_integers_divided_by_zero() -> None:
    # CUDA returns arbitrary numbers for zero divisors; all other quotients must be right.
    dividends = torch.tensor([7, 7], device=DEVICE)
    divisors = torch.tensor([0, 2], device=DEVICE)
    for divide, second in ((torch.floor_divide, 3), (torch.remainder, 1), (torch.fmod, 1)):
        assert divide(dividends, divisors)[1] == second
        divide(dividends, 0)
    assert torch.div(dividends, divisors, rounding_mode="trunc")[1] == 3
    assert dividends.clone().remainder_(divisors)[1] == 1
    assert torch.div(dividends, divisors, rounding_mode="floor")[1] == 3
    rounded = torch.empty_like(dividends)
    torch.div(dividends, divisors, rounding_mode="trunc", out=rounded)
    assert rounded[1] == 3
    assert divisors.tolist() == [0, 2]
    assert (dividends / divisors).tolist() == [float("inf"), 3.5]
    assert torch.remainder(dividends.float(), divisors).isnan().tolist() == [True, False]
