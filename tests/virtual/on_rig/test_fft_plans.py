from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

DEVICE = "cuda:1"

plans = torch.backends.cuda.cufft_plan_cache


@pytest.fixture(autouse=True)
def no_plans() -> Iterator[None]:
    for index in range(torch.cuda.device_count()):
        plans[index].clear()
        assert plans[index].max_size == 4096
    yield
    for index in range(torch.cuda.device_count()):
        plans[index].max_size = 4096


def test_plans_are_kept_by_device_sizes_strides_and_dtype() -> None:
    x = torch.ones(4, 6, device=DEVICE)
    torch.fft.rfft(x)
    torch.fft.rfft(x + 1)
    assert plans[DEVICE].size == 1
    if torch.device(DEVICE).index > 0:
        assert plans[0].size == plans.size == 0
    torch.fft.rfft(x.double())
    torch.fft.rfft(x.t())
    torch.fft.fft(x + 0j)
    torch.fft.irfft(x + 0j)
    assert plans[torch.device(DEVICE)].size == 5
    with torch.cuda.device(DEVICE):
        assert plans.size == 5
        plans.clear()
    assert plans[DEVICE].size == 0


def test_a_plan_has_at_most_three_dims() -> None:
    x = torch.ones(2, 3, 4, 5, device="cuda", dtype=torch.complex64)
    torch.fft.fftn(x, dim=(1, 2, 3))
    assert plans.size == 1
    torch.fft.fftn(x)  # the same last three dimensions, then the first
    assert plans.size == 2
    plans.clear()
    torch.fft.rfftn(x.real.clone())  # the last dimension, then the other three
    assert plans.size == 2
    torch.fft.irfftn(x)  # the first three dimensions, then the last
    assert plans.size == 4


def test_the_least_recently_used_plan_is_evicted() -> None:
    first, second, third = (torch.ones(n, device="cuda") for n in (4, 5, 6))
    plans.max_size = 2
    for x in (first, second, first, third):
        torch.fft.rfft(x)
    assert plans.size == 2
    plans.max_size = 1
    assert plans.size == 1
    plans.max_size = 0
    assert plans.size == 0
    assert torch.fft.rfft(first)[0] == 4
    assert plans.size == 0


def test_invalid_calls_are_refused() -> None:
    with pytest.raises(RuntimeError, match="size must be non-negative, but got -1"):
        plans.max_size = -1
    with pytest.raises(RuntimeError, match="read-only property"):
        plans.size = 1
    with pytest.raises(RuntimeError, match="but got device with index 18"):
        plans[18]
    count = torch.cuda.device_count()
    words = f"expected 0 <= device_index < {chr(count)}], but got device_index={chr(count)}"
    with pytest.raises(RuntimeError, match=re.escape(words)):
        torch._cufft_get_plan_cache_size(count)


def test_a_plan_in_use_is_not_evicted() -> None:
    first, second, third = (torch.ones(n, device="cuda") for n in (4, 5, 6))
    plans.max_size = 2
    for x in (first, second, first, third):
        torch.fft.rfft(x)
    plans.max_size = 3
    torch.fft.rfft(first)
    assert plans.size == 2
    torch.fft.rfft(second)
    assert plans.size == 3


def test_real_numbers_at_an_odd_place_are_copied_with_the_transformed_dim_innermost() -> None:
    for start, count in ((0, 2), (1, 1), (2, 2)):
        plans.clear()
        x = torch.ones(26, device="cuda")[start : start + 24].view(4, 6)
        torch.fft.rfft(x, dim=0)
        torch.fft.rfft(torch.ones(6, 4, device="cuda").t(), dim=0)
        assert plans.size == count, start


def test_transforms_of_the_first_two_dims_take_two_plans() -> None:
    x = torch.ones(4, 6, 8, device="cuda")
    for dims, count in (((0, 1), 2), ((1, 2), 1), ((0, 2), 1), ((0, 1, 2), 2)):
        plans.clear()
        torch.fft.rfftn(x, dim=dims)
        assert plans.size == count, dims
