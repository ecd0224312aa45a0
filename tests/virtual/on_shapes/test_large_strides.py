"""Tensors that span more than 2**31 bytes, which CUDA's iterators split for 32-bit indices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

# Eight dimensions that cannot be joined, and 4 GiB from the first element to the last.
SIZES = (2, 3, 2, 3, 2, 3, 2, 4)
FAR = 2**31 // 2


def far_apart(dtype: torch.dtype = torch.float16, sizes: tuple[int, ...] = SIZES) -> Tensor:
    strides = [3 * 7**place for place in range(len(sizes))][::-1]
    strides[0] = 2 * FAR // torch.empty(0, dtype=dtype).element_size()
    base = torch.empty(strides[0] * sizes[0], device="cuda", dtype=dtype)
    return base.as_strided(sizes, strides)


REDUCTIONS: dict[str, Callable[[Tensor], object]] = {
    "amax": lambda x: x.amax(dim=3),
    "amin of several": lambda x: x.amin(dim=(1, 6)),
    "aminmax": lambda x: torch.aminmax(x, dim=2),
    "max with places": lambda x: x.max(dim=5),
    "argmax": lambda x: x.argmax(dim=0),
    "sum": lambda x: x.sum(dim=(0, 2, 4, 6)),
    "sum of all": lambda x: x.sum(),
    "mean in float32": lambda x: x.mean(dim=7, dtype=torch.float32),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=(0, 7)),
    "variance and mean": lambda x: torch.var_mean(x, dim=(3, 4, 5)),
    "standard deviation": lambda x: x.std(dim=0),
    "all": lambda x: (x > 0).all(dim=1),
    "product": lambda x: x.prod(dim=2),
    "count": lambda x: x.count_nonzero(dim=(0, 1)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_of_eight_dimensions(name: str) -> None:
    REDUCTIONS[name](far_apart())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.complex64])
def test_a_sum_in_other_dtypes(dtype: torch.dtype) -> None:
    assert far_apart(dtype).sum(dim=(1, 3)).shape == (2, 2, 2, 3, 2, 4)


@pytest.mark.parametrize("dimensions", range(1, 9))
def test_as_many_dimensions_as_a_tensor_has(dimensions: int) -> None:
    sizes = SIZES[:dimensions]
    assert far_apart(sizes=sizes).amax(dim=-1).shape == sizes[:-1]


def test_an_expanded_tensor_of_more_than_2_31_elements() -> None:
    assert torch.empty(1, 1, 1, device="cuda").expand(2**11, 2**11, 2**11).sum().shape == ()


@pytest.mark.parametrize("draw", ["normal_", "uniform_", "random_", "exponential_", "bernoulli_"])
def test_random_numbers_into_eight_dimensions(draw: str) -> None:
    getattr(far_apart(torch.float32), draw)()


def test_dimensions_that_can_be_joined_are_reduced_as_one() -> None:
    """The split over blocks follows the joined dimensions, as on a GPU."""

    def most_bytes(x: Tensor) -> int:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        x.sum()
        return torch.cuda.max_memory_allocated() - before

    flat = torch.empty(2**22, device="cuda")
    assert most_bytes(flat.view(*[2] * 22)) == most_bytes(flat) > 512
