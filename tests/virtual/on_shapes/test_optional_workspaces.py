"""A convolution does without its workspace where the workspace does not fit, as under PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

MIB = 2**20
DEVICE = 9  # a T4, which no other test fills


@pytest.fixture(autouse=True)
def nearly_full() -> Iterator[None]:
    """Leave room for the operands and the results of these layers, not for a copy of them."""
    with torch.cuda.device(DEVICE):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        free, _ = torch.cuda.mem_get_info()
        filler = torch.empty(free - 1856 * MIB, dtype=torch.uint8, device="cuda")
        yield
        torch.cuda.synchronize()  # or the clock of a later test has this work to do
        del filler
        torch.cuda.empty_cache()


def half(*sizes: int) -> Tensor:
    return torch.empty(sizes, dtype=torch.float16, device="cuda")


def backward(make: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor) -> None:
    make(x.requires_grad_(), weight.requires_grad_()).backward(torch.empty_like(x))


# 512 MiB for the input, and as much for the result; a copy of both takes another GiB.
IMAGES, VOLUMES = (64, 64, 256, 256), (64, 64, 16, 64, 64)
LAYERS: dict[str, Callable[[], object]] = {
    "an image": lambda: functional.conv2d(half(*IMAGES), half(64, 64, 3, 3), padding=1),
    "a volume": lambda: functional.conv3d(half(*VOLUMES), half(64, 64, 3, 3, 3), padding=1),
    "a transposed layer": lambda: functional.conv_transpose2d(
        half(60, *IMAGES[1:]), half(64, 64, 3, 3), padding=1
    ),
    "in groups": lambda: functional.conv2d(
        half(62, *IMAGES[1:]), half(64, 32, 3, 3), padding=1, groups=2
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_whose_workspace_does_not_fit(name: str) -> None:
    refused = torch.cuda.memory_stats()["num_ooms"]
    LAYERS[name]()
    assert torch.cuda.memory_stats()["num_ooms"] == refused + 1


def test_the_backward_pass_does_without_both_of_its_workspaces() -> None:
    x, weight = half(32, *IMAGES[1:]), half(64, 64, 3, 3)
    torch.cuda.empty_cache()
    rest = torch.empty(524 * MIB, dtype=torch.uint8, device="cuda")
    backward(lambda x, weight: functional.conv2d(x, weight, padding=1), x, weight)
    assert torch.cuda.memory_stats()["num_ooms"] > 0
    del rest


def test_a_plan_that_did_not_fit_is_not_tried_again() -> None:
    x, weight = half(*IMAGES), half(64, 64, 5, 5)
    before = torch.cuda.memory_stats()["num_ooms"]
    for _ in range(3):
        functional.conv2d(x, weight, padding=2)
    assert torch.cuda.memory_stats()["num_ooms"] == before + 1


def test_operands_that_do_not_fit_are_refused() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        functional.conv2d(half(*IMAGES), half(512, 64, 3, 3), padding=1)


def test_other_libraries_need_their_workspaces() -> None:
    x = torch.empty(64 * MIB, dtype=torch.complex64, device="cuda")  # and 1 GiB for the results
    with pytest.raises(torch.OutOfMemoryError):
        [torch.fft.fft(x) for _ in range(2)]
