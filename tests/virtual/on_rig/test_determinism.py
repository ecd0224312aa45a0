"""The errors of nondeterministic operators under `torch.use_deterministic_algorithms`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

DEVICE = torch.device("cuda", 1)


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def ones(*size: int, requires_grad: bool = False) -> Tensor:
    return torch.ones(*size, device=DEVICE, requires_grad=requires_grad)


def zeros(*size: int) -> Tensor:
    return torch.zeros(*size, device=DEVICE, dtype=torch.long)


def backward_of(operator: Callable[[Tensor], Tensor], *size: int) -> None:
    operator(ones(*size, requires_grad=True)).sum().backward()


def embed(mode: str) -> None:
    functional.embedding_bag(
        zeros(2, 2), ones(4, 3, requires_grad=True), mode=mode
    ).sum().backward()


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "pooling": (
        lambda: backward_of(lambda x: functional.avg_pool3d(x, 2), 1, 1, 2, 2, 2),
        "avg_pool3d_backward_cuda",
    ),
    "padding": (
        lambda: backward_of(lambda x: functional.pad(x, (1, 1), "reflect"), 1, 2, 4),
        "reflection_pad1d_backward_out_cuda",
    ),
    "losses": (
        lambda: functional.nll_loss(ones(1, 2, 3, 3), zeros(1, 3, 3)),
        "nll_loss2d_forward_out_cuda_template",
    ),
    "bags of maxima": (lambda: embed("max"), "embedding_bag_backward_cuda_max"),
    "weighted counts": (lambda: torch.bincount(zeros(3), ones(3)), "_bincount_cuda"),
    "histograms": (lambda: torch.histc(ones(3)), "_histc_cuda with floating point input"),
    "a median's index": (lambda: ones(3).median(0), "median CUDA with indices output"),
    "products": (
        lambda: ones(3).scatter_reduce(0, zeros(3), ones(3), "prod"),
        "scatter_reduce_cuda_prod_",
    ),
    "indexed products": (
        lambda: ones(3).index_reduce_(0, zeros(3), ones(3), "prod"),
        "index_reduce_cuda",
    ),
    "put": (lambda: ones(3).put_(zeros(3), ones(3), accumulate=True), "put_"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nondeterministic_operators_are_refused(case: str) -> None:
    call, kernel = REFUSED[case]
    with pytest.raises(RuntimeError, match=f"^{kernel} does not have a deterministic"):
        call()


def test_deterministic_kernels_run() -> None:
    assert torch.bincount(zeros(3)).item() == 3
    assert ones(3).median().item() == 1
    assert ones(3).scatter_reduce(0, zeros(3), ones(3), "sum")[0].item() == 4
    assert functional.nll_loss(ones(1, 2, 3, 3), zeros(1, 3, 3), reduction="none").sum() == -9
    embed("sum")


def test_a_program_may_ask_for_warnings() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="_bincount_cuda does not have a deterministic"):
        torch.bincount(zeros(3), ones(3))


def test_uninitialized_memory_is_the_same_in_each_run() -> None:
    assert torch.empty(3, device=DEVICE).isnan().all()
    assert torch.empty_strided((3,), (1,), device=DEVICE).isnan().all()


def test_uninitialized_memory_is_filled_only_if_requested() -> None:
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        ones(3)  # its memory is reused
        assert not torch.empty(3, device=DEVICE).isnan().any()
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
