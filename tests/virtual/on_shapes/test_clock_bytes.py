"""The bytes that operators access, on the clock of virtual GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from charged_work import charged, close, numbers, ones, rows
from gpu_rates import (
    LAUNCH_SECONDS,
    memory_gpu_seconds,
    seconds,
)
from torch import Tensor, nn
from torch.nn import functional

NUMBERS = 2**20
BYTES = 4 * NUMBERS


ROWS_BYTES = 8 * 64 * 4
INDEX_BYTES = 8 * 8

# (setup, work, bytes accessed)
TOUCHED: dict[str, tuple[Callable[[], tuple[Tensor, ...]], Callable[..., object], int]] = {
    "out of place": (lambda: (ones(NUMBERS),), torch.exp, 2 * BYTES),
    "in place": (lambda: (ones(NUMBERS),), torch.exp_, 2 * BYTES),
    "added in place": (lambda: (ones(NUMBERS), ones(NUMBERS)), Tensor.add_, 3 * BYTES),
    "written only": (lambda: (ones(NUMBERS),), torch.zero_, BYTES),
    "into out": (
        lambda: (ones(NUMBERS), ones(NUMBERS)),
        lambda x, y: torch.exp(x, out=y),
        2 * BYTES,
    ),
    "expanded": (lambda: (ones(1).expand(NUMBERS),), torch.exp, BYTES + 4),
    "broadcast": (lambda: (ones(1024, 1024), ones(1024)), torch.add, 2 * BYTES + 4096),
    "a view": (lambda: (ones(1024, 1024),), lambda x: x.t()[1:], 0),
    "a part": (lambda: (ones(1024, 1024),), lambda x: x[:, :512].exp(), BYTES),
    "cloned": (lambda: (ones(NUMBERS),), torch.clone, 2 * BYTES),
    "to another dtype": (lambda: (ones(NUMBERS),), Tensor.half, BYTES + BYTES // 2),
    "made empty": (tuple, lambda: ones(NUMBERS), 0),
    "without elements": (lambda: (ones(0),), torch.exp, 0),
    "resized": (lambda: (ones(NUMBERS),), lambda x: x.resize_(NUMBERS // 2), 0),
    "rows of an embedding": (
        lambda: (rows(), ones(100_000, 64)),
        functional.embedding,
        2 * ROWS_BYTES + INDEX_BYTES,
    ),
    "rows added": (
        lambda: (ones(100_000, 64), rows(), ones(8, 64)),
        lambda table, index, source: table.index_add_(0, index, source),
        3 * (ROWS_BYTES + INDEX_BYTES),
    ),
    "numbers taken": (
        lambda: (numbers(100_000), rows()),
        torch.take,
        3 * INDEX_BYTES,
    ),
    "numbers put": (
        lambda: (numbers(100_000), rows(), numbers(8)),
        Tensor.put_,
        3 * (INDEX_BYTES + INDEX_BYTES),
    ),
    "numbers gathered": (
        lambda: (numbers(100_000), rows()),
        lambda x, index: x.gather(0, index),
        3 * INDEX_BYTES,
    ),
    "numbers scattered": (
        lambda: (numbers(100_000), rows(), numbers(8)),
        lambda x, index, source: x.scatter_add_(0, index, source),
        3 * (INDEX_BYTES + INDEX_BYTES),
    ),
    "rows copied": (
        lambda: (ones(100_000, 64), rows(), ones(8, 64)),
        lambda table, index, source: table.index_copy_(0, index, source),
        3 * (ROWS_BYTES + INDEX_BYTES),
    ),
    "a list copied": (
        lambda: (ones(NUMBERS), ones(NUMBERS)),
        lambda x, y: torch._foreach_copy_([x], [y]),
        2 * BYTES,
    ),
    "a list set to zero": (
        lambda: (ones(NUMBERS), ones(NUMBERS)),
        lambda *xs: torch._foreach_zero_(xs),
        2 * BYTES,
    ),
    "a loss backwards": (  # does not read the loss's input
        lambda: (ones(1), ones(8, 1024), rows(), ones(1)),
        lambda gradient, x, target, weight: torch.ops.aten.nll_loss_backward(
            gradient[0], x, target, None, 1, -100, weight[0]
        ),
        4 + INDEX_BYTES + 4 + 8 * 1024 * 4,
    ),
    "a cell of an LSTM": (  # keeps four gates per element for the gradient
        lambda: (ones(8, 64), ones(8, 64), ones(8, 16)),
        torch.ops.aten._thnn_fused_lstm_cell,
        8 * 4 * (64 + 64 + 16 + 16 + 16 + 64),
    ),
    "a list": (
        lambda: (ones(NUMBERS), ones(NUMBERS)),
        lambda *xs: torch._foreach_mul_(xs, 2.0),
        4 * BYTES,
    ),
}


@pytest.mark.parametrize("name", TOUCHED)
def test_bytes_are_those_that_a_kernel_accesses(name: str) -> None:
    prepare, work, expected = TOUCHED[name]
    tensors = prepare()
    assert charged(lambda: work(*tensors))[1] == expected


def test_bags_read_only_the_rows_that_they_name() -> None:
    index, table, starts = rows(), ones(100_000, 64), numbers(2)
    work = lambda: functional.embedding_bag(index, table, starts, mode="sum")  # noqa: E731
    assert ROWS_BYTES < charged(work)[1] < 2 * ROWS_BYTES


@pytest.mark.parametrize(("training", "passes"), [(True, 3), (False, 2)])
def test_batch_norm_in_training_reads_its_input_twice(training: bool, passes: int) -> None:
    x, norm = ones(32, 64, 128, 128), nn.BatchNorm2d(64).cuda().train(training)
    assert charged(lambda: norm(x))[1] == pytest.approx(passes * x.nbytes, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.int16, torch.float32, torch.int64])
def test_a_sort_reads_and_writes_keys_and_positions_for_each_byte_of_a_key(
    dtype: torch.dtype,
) -> None:
    keys = torch.empty(100_000, dtype=dtype, device="cuda")
    moved = 2 * keys.numel() * (dtype.itemsize + 8)
    assert charged(lambda: keys.sort())[1] == dtype.itemsize * moved
    on_chip = keys.view(100, 1000)
    assert charged(lambda: on_chip.sort())[1] == moved


def test_memory_bound_work_takes_the_time_of_the_bandwidth() -> None:
    x = ones(2**28)
    assert seconds(lambda: x.mul_(2)) == close(
        LAUNCH_SECONDS + memory_gpu_seconds(x.nbytes, x.nbytes, footprint=x.nbytes)
    )
