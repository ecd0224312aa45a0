"""The dtypes that CUDA's kernels refuse, for tests in both modes."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

TRUTHS, WHOLE, HALF, SINGLE, COMPLEX = (
    torch.bool,
    torch.long,
    torch.half,
    torch.float,
    torch.cfloat,
)

# By kernel: its operators, and a dtype that it refuses.
KERNELS: dict[str, tuple[list[Callable[[Tensor], object]], torch.dtype]] = {
    "floor_cuda": ([torch.floor], TRUTHS),
    "ceil_cuda": ([torch.ceil], TRUTHS),
    "trunc_cuda": ([torch.trunc], TRUTHS),
    "round_cuda": ([torch.round], COMPLEX),
    "frac_cuda": ([torch.frac], WHOLE),
    "erf_cuda": ([torch.erf], COMPLEX),
    "erfc_cuda": ([torch.erfc], COMPLEX),
    "erfinv_cuda": ([torch.erfinv], COMPLEX),
    "i0_cuda": ([torch.i0], COMPLEX),
    "logit_cuda": ([torch.logit], COMPLEX),
    "lgamma_cuda": ([torch.lgamma], COMPLEX),
    "digamma_cuda": ([torch.digamma], COMPLEX),
    "bitwise_not_cuda": ([torch.bitwise_not], SINGLE),
    "angle_cuda": ([torch.angle], HALF),
    "lerp_cuda": ([lambda x: torch.lerp(x, x, x), lambda x: torch.lerp(x, x, 1)], WHOLE),
    "igamma_cuda": ([lambda x: torch.igamma(x, x)], HALF),
    "igammac_cuda": ([lambda x: torch.igammac(x, x)], HALF),
    "compare_cuda": (
        [lambda x: x < x, lambda x: x > x, lambda x: x <= x, lambda x: x >= x],
        COMPLEX,
    ),
    "bitwise_and_cuda": ([lambda x: x & x], SINGLE),
    "bitwise_or_cuda": ([lambda x: x | x], SINGLE),
    "bitwise_xor_cuda": ([lambda x: x ^ x], SINGLE),
    "fmod_cuda": ([lambda x: x.fmod(x)], TRUTHS),
    "remainder_cuda": ([lambda x: x.remainder(x)], TRUTHS),
    "pow_cuda": ([lambda x: x.pow(x)], TRUTHS),
    "gcd_cuda": ([lambda x: x.gcd(x)], SINGLE),
    "lcm_cuda": ([lambda x: x.lcm(x)], SINGLE),
    "atan2_cuda": ([lambda x: x.atan2(x)], COMPLEX),
    "hypot_cuda": ([lambda x: x.hypot(x)], WHOLE),
    "nextafter_cuda": ([lambda x: x.nextafter(x)], WHOLE),
    "logaddexp_cuda": ([lambda x: x.logaddexp(x)], WHOLE),
    "logaddexp2_cuda": ([lambda x: x.logaddexp2(x)], WHOLE),
    "xlogy_cuda": ([lambda x: x.xlogy(x)], COMPLEX),
    "copysign_cuda": ([lambda x: x.copysign(x)], COMPLEX),
    "div_floor_cuda": (
        [lambda x: x // x, lambda x: torch.div(x, x, rounding_mode="floor")],
        TRUTHS,
    ),
    "div_trunc_cuda": ([lambda x: torch.div(x, x, rounding_mode="trunc")], TRUTHS),
    "max_values_cuda": ([torch.amax], COMPLEX),
    "min_values_cuda": ([torch.amin], COMPLEX),
    "aminmax_all_cuda": ([torch.aminmax], COMPLEX),
    "aminmax_cuda": ([lambda x: torch.aminmax(x, dim=0)], COMPLEX),
    "max_all_cuda": ([torch.max], COMPLEX),
    "min_all_cuda": ([torch.min], COMPLEX),
    "kthvalue_cuda": ([lambda x: x.kthvalue(1)], COMPLEX),
    "median_out_impl": ([lambda x: x.median(0), lambda x: x.nanmedian(0)], COMPLEX),
    "cuda_mode": ([torch.mode], COMPLEX),
    "cummax_cuda": ([lambda x: x.cummax(0)], COMPLEX),
    "cummin_cuda": ([lambda x: x.cummin(0)], COMPLEX),
    "histc": ([torch.histc], torch.bfloat16),
    "mean_cuda": ([torch.mean], torch.complex32),
    "reciprocal_cuda": ([torch.reciprocal], torch.complex32),
    "cdist_cuda": ([lambda x: torch.cdist(x, x)], HALF),
    "reflection_pad1d_out": ([lambda x: functional.pad(x, (1, 1), "reflect")], TRUTHS),
}

# By a pattern of the message: an operator whose message names no kernel, and a dtype that it
# refuses. PyTorch 2.15 moved some checks into the kernels.
WORDS: dict[str, tuple[Callable[[Tensor], object], torch.dtype]] = {
    r"topk does not support complex dtypes|\"topk_out_cuda\" not implemented for 'ComplexFloat'": (
        lambda x: x.topk(1),
        COMPLEX,
    ),
    r"topk does not support bool dtypes|\"topk_out_cuda\" not implemented for 'Bool'": (
        lambda x: x.topk(1),
        TRUTHS,
    ),
    "Sort (currently )?does not support complex dtypes": (torch.median, COMPLEX),
    "Sort (currently )?does not support complex": (torch.nanmedian, COMPLEX),
    "Sort (currently )?does not support": (torch.sort, COMPLEX),
    "HalfTensor is not supported": (torch.histc, HALF),
}


def check_words(words: str, device: torch.device) -> None:
    """Check that the operator of `words` refuses its dtype with this message."""
    call, dtype = WORDS[words]
    with pytest.raises((NotImplementedError, RuntimeError, TypeError), match=words):
        call(torch.ones(2, 2, device=device).to(dtype))


def check_refusals(kernel: str, device: torch.device) -> None:
    """Check that the operators of `kernel` refuse its dtype with CUDA's message."""
    calls, dtype = KERNELS[kernel]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ComplexHalf support is experimental")
        x = torch.ones(2, 2, device=device).to(dtype)
    for call in calls:
        with pytest.raises((NotImplementedError, RuntimeError)) as raised:
            call(x)
        assert f'"{kernel}" not implemented for ' in str(raised.value)
