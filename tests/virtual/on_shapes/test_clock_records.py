"""What the records of memory-bound operators say, beyond bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gpu_rates import ACCESSES, core
from torch.nn.functional import interpolate

Fields = dict[str, float]


def records_of(work: Callable[[], object]) -> list[Fields]:
    core.begin_work_log()
    work()
    columns = core.end_work_log()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def array(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


@pytest.mark.parametrize(
    ("source", "target", "access"),
    [
        (torch.float32, torch.bfloat16, "pointwise"),
        (torch.float32, torch.float16, "pointwise"),
        (torch.bfloat16, torch.float32, "conversion"),
        (torch.float16, torch.bfloat16, "conversion"),
        (torch.float32, torch.float64, "conversion"),
    ],
)
def test_only_float32_is_converted_to_halves_several_elements_at_once(
    source: torch.dtype, target: torch.dtype, access: str
) -> None:
    (record,) = records_of(lambda: array(30, 50, dtype=source).to(target))
    assert (ACCESSES[int(record["access"])], record["elements"]) == (access, 1500)


@pytest.mark.parametrize(
    ("reduce", "rows"),
    [
        (lambda x: x.sum(), 1),
        (lambda x: x.sum(0), 20),
        (lambda x: x.sum((0, 1)), 600),
        (lambda x: x.sum(2), 0),
        (lambda x: x.mean(-1), 0),
        (lambda x: x.amax(1), 30),
        (lambda x: x.transpose(0, 2).sum(0), 0),
    ],
)
def test_a_reduction_along_columns_knows_its_rows(
    reduce: Callable[[torch.Tensor], object], rows: int
) -> None:
    x = array(20, 30, 50)
    (record,) = records_of(lambda: reduce(x))
    assert (ACCESSES[int(record["access"])], record["rows"]) == ("reduction", rows)


@pytest.mark.parametrize(
    ("mode", "size", "layout", "planes"),
    [
        ("bilinear", (2, 8, 7, 7), torch.contiguous_format, 16),
        ("bilinear", (2, 8, 7, 7), torch.channels_last, 0),
        ("bilinear", (2, 3, 7, 7), torch.channels_last, 6),
        ("bicubic", (2, 8, 7, 7), torch.channels_last, 16),
        ("nearest", (2, 8, 7, 7), torch.contiguous_format, 0),
        ("linear", (2, 8, 7), torch.preserve_format, 16),
        ("trilinear", (2, 8, 3, 7, 7), torch.contiguous_format, 16),
    ],
)
def test_a_resampling_knows_the_planes_that_its_threads_walk_over(
    mode: str, size: tuple[int, ...], layout: torch.memory_format, planes: int
) -> None:
    x = array(*size)
    if layout is not torch.preserve_format:
        x = x.to(memory_format=layout)
    (record,) = records_of(lambda: interpolate(x, scale_factor=2, mode=mode))
    assert (ACCESSES[int(record["access"])], record["rows"]) == ("window", planes)


def test_a_softmax_knows_the_rows_that_it_walks_down() -> None:
    x = array(20, 30, 50)
    assert [records_of(lambda d=d: x.softmax(d))[0]["rows"] for d in range(3)] == [20, 30, 0]
    assert records_of(lambda: array(20, 1).softmax(0))[0]["rows"] == 0


def gradient_records(columns: int, logs: bool = False) -> list[Fields]:
    x = array(10, columns).requires_grad_()
    y = x.log_softmax(1) if logs else x.softmax(1)
    given = torch.empty_like(y)
    return records_of(lambda: torch.autograd.grad(y, x, given))


def test_the_gradient_of_a_softmax_is_multiplied_first() -> None:
    last, first = gradient_records(1000)
    assert [ACCESSES[int(r["access"])] for r in (last, first)] == ["softmax_backward", "pointwise"]
    assert (first["bytes_read"], first["bytes_written"]) == (80_000, 40_000)
    assert len(gradient_records(1000, logs=True)) == 1


def test_long_columns_are_read_again_for_the_gradient() -> None:
    x = array(1025, 10).requires_grad_()
    y = x.log_softmax(0)
    given = torch.empty_like(y)
    (record,) = records_of(lambda: torch.autograd.grad(y, x, given))
    assert record["bytes_read"] == 2 * 2 * 10 * 1025 * 4


@pytest.mark.parametrize(("columns", "passes"), [(1024, 1), (12288, 1), (12289, 2)])
def test_rows_beyond_the_shared_memory_are_read_again_for_the_gradient(
    columns: int, passes: int
) -> None:
    record = gradient_records(columns)[0]
    assert record["bytes_read"] == passes * 2 * 10 * columns * 4
