"""The time of factorizations and solvers: far more than the time of moving their bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gpu_rates import LAUNCH_SECONDS, SPEC, VALUES, gpu_seconds, seconds
from torch import Tensor

assert SPEC.clock_hertz is not None
COLUMN_SECONDS = VALUES["memory.factorization_cycles"] / SPEC.clock_hertz


def matrices(*sizes: int) -> Tensor:
    return torch.empty(*sizes, device="cuda")


def update_seconds(batch: int, size: int, flops: float) -> float:
    fields = {"batch": batch, "m": size, "n": size, "k": flops * size / 2, "kernels": 0}
    return gpu_seconds("product", precision=1, **fields)


def test_the_columns_of_a_cholesky_factorization_and_the_rest() -> None:
    x = matrices(1024, 1024)
    expected = LAUNCH_SECONDS + 1024 * COLUMN_SECONDS + update_seconds(1, 1024, 1 / 3)
    assert seconds(lambda: torch.linalg.cholesky_ex(x)) == pytest.approx(expected, rel=0.05)


# On an H100, the factorization took 1.95 ms; an A100 has 0.71 of its clock.
def test_a_cholesky_factorization_of_2048_columns_is_near_what_was_published() -> None:
    x = matrices(2048, 2048)
    assert 1.95e-3 < seconds(lambda: torch.linalg.cholesky_ex(x)) < 2 * 1.95e-3


@pytest.mark.parametrize(
    ("call", "batched_up_to"),
    [
        (torch.linalg.cholesky_ex, 512), (torch.linalg.lu_factor_ex, 128), (torch.linalg.qr, 256),
        (torch.linalg.inv_ex, 128), (torch.linalg.eigh, 32), (torch.linalg.svd, 32),
    ],
)  # fmt: skip
def test_small_matrices_are_factorized_at_once(
    call: Callable[[Tensor], object], batched_up_to: int
) -> None:
    small = [matrices(batch, batched_up_to, batched_up_to) for batch in (1, 8)]
    one, eight = (seconds(lambda x=x: call(x)) for x in small)
    assert eight < 3 * one
    if batched_up_to < 512:
        large = [matrices(batch, 300, 300) for batch in (1, 8)]
        one, eight = (seconds(lambda x=x: call(x)) for x in large)
        assert eight > 7 * one


def test_harder_problems_take_longer() -> None:
    x = matrices(512, 512)
    calls = (
        torch.linalg.cholesky_ex, torch.linalg.lu_factor_ex, torch.linalg.inv_ex, torch.linalg.eigh,
        torch.linalg.svd,
    )  # fmt: skip
    times = [seconds(lambda call=call: call(x)) for call in calls]
    assert times == sorted(times)
    assert times[-1] > 0.05  # Jacobi's method: tenths of a second


def test_a_solver_takes_longer_for_more_right_sides() -> None:
    x = matrices(512, 512)
    factors = torch.linalg.lu_factor_ex(x)
    few, many = (
        seconds(lambda n=n: torch.linalg.lu_solve(factors.LU, factors.pivots, matrices(512, n)))
        for n in (1, 65536)
    )
    assert 512 * COLUMN_SECONDS < few < many
