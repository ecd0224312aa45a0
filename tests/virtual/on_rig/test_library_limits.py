"""Limits of CUDA's libraries that the CPU does not have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "real": torch.fft.rfft,
    "complex": torch.fft.fft,
    "to real": lambda x: torch.fft.irfft(x, n=6),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_transform_of_halves_takes_powers_of_two(transform: str) -> None:
    call = TRANSFORMS[transform]
    x = torch.ones(6, device="cuda")
    call(x)
    with pytest.raises(RuntimeError, match=r"powers of two .* half precision, but got .* of\[6\]"):
        call(x.half())
    torch.fft.rfft(x[:4].half())


def test_a_transform_of_several_dimensions_names_all() -> None:
    with pytest.raises(RuntimeError, match=r"signal size of\[8, 12\]"):
        torch.fft.rfft2(torch.ones(2, 8, 12, dtype=torch.half, device="cuda"))


def test_a_product_of_bytes_needs_rows_and_multiples_of_eight() -> None:
    x = torch.ones(32, 32, dtype=torch.int8, device="cuda")
    assert torch._int_mm(x, x)[0, 0] == 32
    with pytest.raises(RuntimeError, match="needs to be greater than 16, but got 16"):
        torch._int_mm(x[:16], x)
    with pytest.raises(RuntimeError, match="a multiple of 8, but got 7"):
        torch._int_mm(x[:, :7].contiguous(), x[:7])


@pytest.mark.virtual_only("it is of a GPU that is too old")
def test_eight_bit_floats_need_a_newer_gpu() -> None:
    assert torch.cuda.get_device_capability() == (8, 0)
    x = torch.ones(16, 16, device="cuda").to(torch.float8_e4m3fn)
    scale = torch.ones((), device="cuda")
    with pytest.raises(
        RuntimeError, match="only supported on CUDA devices with compute capability"
    ):
        torch._scaled_mm(x, x.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
