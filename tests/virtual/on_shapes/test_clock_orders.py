"""Pointwise kernels and copies whose operands differ in the order of their elements in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gpu_rates import LAUNCH_SECONDS, memory_gpu_seconds, seconds
from torch import Tensor

from anyrig.virtual import clock

SIZE = 2**14
PLANES = (256, 64, 128, 128)


def close(value: float) -> object:
    return pytest.approx(value, rel=0.01)


def empty(*sizes: int) -> Tensor:
    return torch.empty(*sizes, device="cuda")


def square() -> Tensor:
    return empty(SIZE, SIZE)


def images() -> Tensor:
    return empty(*PLANES)


def channels_last(*sizes: int) -> Tensor:
    return torch.empty(*sizes, device="cuda", memory_format=torch.channels_last)


def access_of(work: Callable[[], object]) -> str:
    """Return which access explains the time of `work`."""
    before = clock().devices[0].memory_bytes
    spent = seconds(work) - LAUNCH_SECONDS
    moved = int(clock().devices[0].memory_bytes - before)
    expected = {access: memory_gpu_seconds(moved, 0, access) for access in ("pointwise", "strided")}
    assert expected["strided"] > 1.1 * expected["pointwise"]
    return next((access for access, value in expected.items() if spent == close(value)), "other")


def test_a_transposed_operand_takes_the_time_of_a_strided_access() -> None:
    x, y = square(), square()
    assert seconds(lambda: x + y.t()) == close(
        LAUNCH_SECONDS + memory_gpu_seconds(2 * x.nbytes, x.nbytes, "strided")
    )


# Setup, work.
Case = tuple[Callable[[], tuple[Tensor, ...]], Callable[..., object]]

DIFFERENT: dict[str, Case] = {
    "the first": (lambda: (square().t(), square()), torch.add),
    "the third": (lambda: (square(), square(), square().t()), torch.addcmul),
    "added in place": (lambda: (square(), square().t()), Tensor.add_),
    "written to out": (lambda: (square(), square().t()), lambda x, y: torch.exp(x, out=y)),
    "layouts of images": (lambda: (images(), channels_last(*PLANES)), torch.mul),
    "matrices of a batch": (lambda: (images(), images().transpose(2, 3)), torch.add),
    "after a broadcast operand": (
        lambda: (empty(256, 64, 1, 1), images(), channels_last(*PLANES)),
        torch.addcmul,
    ),
    "a part of one expanded matrix": (
        lambda: (empty(1, 2048, SIZE), square().t().expand(8, SIZE, SIZE)[:1, :2048]),
        torch.add,
    ),
    "copied": (lambda: (square().t(),), Tensor.contiguous),
    "of a broadcast row": (lambda: (empty(SIZE), square(), square().t()), torch.addcmul),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_operands_of_different_orders(name: str) -> None:
    setup, work = DIFFERENT[name]
    operands = setup()
    assert access_of(lambda: work(*operands)) == "strided"


# Threads read the small operand of a broadcast from the cache, whatever its order.
ALIKE: dict[str, Case] = {
    "one operand": (lambda: (square().t(),), torch.exp),
    "equal orders": (lambda: (square().t(), square().t()), torch.add),
    "channels last": (lambda: (channels_last(*PLANES), channels_last(*PLANES)), torch.add),
    "a number for each channel": (lambda: (images(), empty(64, 1, 1)), torch.mul),
    "a number for each channel first": (lambda: (empty(64, 1, 1), images()), torch.mul),
    "a number for each plane": (lambda: (images(), empty(256, 64, 1, 1)), torch.mul),
    "a number for each point": (
        lambda: (channels_last(*PLANES), empty(256, 1, 128, 128)),
        torch.mul,
    ),
    "a number for each row": (lambda: (square(), empty(SIZE, 1)), torch.add),
    "a transposed mask": (lambda: (empty(64, 2048, 2048), empty(2048, 2048).t()), torch.add),
    "a mask and a transposed one": (
        lambda: (empty(2048, 2048), empty(2048, 2048).t(), empty(64, 2048, 2048)),
        torch.addcmul,
    ),
    "an expanded transposed mask": (
        lambda: (empty(64, 2048, 2048), empty(2048, 2048).t().expand(64, 2048, 2048)),
        torch.add,
    ),
    "broadcast by each other": (lambda: (empty(SIZE, 1), empty(1, SIZE)), torch.add),
    "expanded": (lambda: (square(), empty(SIZE, 1).expand(SIZE, SIZE)), torch.add),
    "one channel": (
        lambda: (empty(256, 1, 1024, 1024), channels_last(256, 1, 1024, 1024)),
        torch.add,
    ),
    "one point": (lambda: (empty(SIZE, SIZE, 1, 1), channels_last(SIZE, SIZE, 1, 1)), torch.add),
    "a column": (lambda: (empty(SIZE**2, 1), empty(1, SIZE**2).t()), torch.add),
    "copied to all columns": (
        lambda: (empty(SIZE, 1).expand(SIZE, SIZE),),
        Tensor.contiguous,
    ),
    "copied to all matrices": (
        lambda: (empty(2048, 2048).t().expand(64, 2048, 2048),),
        Tensor.contiguous,
    ),
    "every second column": (lambda: (square()[:, ::2], empty(SIZE, SIZE // 2)), torch.add),
    "of a part": (lambda: (square()[:, : SIZE // 2], empty(SIZE, SIZE // 2)), torch.add),
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_operands_of_the_same_order(name: str) -> None:
    setup, work = ALIKE[name]
    operands = setup()
    assert access_of(lambda: work(*operands)) == "pointwise"
