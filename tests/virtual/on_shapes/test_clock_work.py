"""The work of operators: FLOPs as PyTorch counts them, bytes accessed, and rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from gpu_rates import (
    LAUNCH_SECONDS,
    PRECISIONS,
    gpu_seconds,
    memory_gpu_seconds,
    product_gpu_seconds,
    seconds,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyrig.virtual import clock


def close(value: float) -> object:
    return pytest.approx(value, rel=0.01)


def leaf(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*sizes, device="cuda", dtype=dtype, requires_grad=True)


def charged(work: Callable[[], object]) -> tuple[float, float]:
    """Return the FLOPs and bytes of `work` on cuda:0."""
    before = clock().devices[0]
    work()
    after = clock().devices[0]
    return after.flops - before.flops, after.memory_bytes - before.memory_bytes


def attention(
    backend: SDPBackend, dtype: torch.dtype, value: int = 64, causal: bool = False
) -> None:
    keys = 96 if causal else 160
    query, key = leaf(2, 8, 96, 64, dtype=dtype), leaf(2, 8, keys, 64, dtype=dtype)
    values = leaf(2, 8, keys, value, dtype=dtype)
    with sdpa_kernel(backend):
        result = functional.scaled_dot_product_attention(query, key, values, is_causal=causal)
        result.sum().backward()


OPERATORS: dict[str, Callable[[], object]] = {
    "mm": lambda: (leaf(3, 4) @ leaf(4, 5)).sum().backward(),
    "bmm": lambda: (leaf(2, 3, 4) @ leaf(2, 4, 5)).sum().backward(),
    "addmm": lambda: torch.addmm(leaf(3, 5), leaf(3, 4), leaf(4, 5)).sum().backward(),
    "baddbmm": lambda: torch.baddbmm(leaf(3, 5), leaf(2, 3, 4), leaf(2, 4, 5)).sum().backward(),
    "linear": lambda: functional.linear(leaf(7, 3, 4), leaf(5, 4), leaf(5)).sum().backward(),
    "matmul": lambda: (leaf(2, 1, 3, 4) @ leaf(6, 4, 5)).sum().backward(),
    "einsum": lambda: torch.einsum("bij,bkj->bik", leaf(2, 3, 4), leaf(2, 5, 4)).sum().backward(),
    "conv1d": lambda: functional.conv1d(leaf(2, 4, 9), leaf(6, 4, 3), leaf(6)).sum().backward(),
    "conv2d": lambda: functional.conv2d(
        leaf(2, 4, 9, 9), leaf(6, 4, 3, 3), stride=2, padding=1, dilation=2
    ).sum().backward(),
    "conv3d": lambda: functional.conv3d(leaf(2, 4, 5, 5, 5), leaf(6, 4, 3, 3, 3)).sum().backward(),
    "conv2d in groups": lambda: functional.conv2d(leaf(2, 4, 9, 9), leaf(6, 2, 3, 3), groups=2),
    "conv_transpose2d": lambda: functional.conv_transpose2d(
        leaf(2, 4, 9, 9), leaf(4, 6, 3, 3), stride=2, output_padding=1
    ).sum().backward(),
    "conv2d of a constant": lambda: functional.conv2d(
        leaf(2, 4, 9, 9).detach(), leaf(6, 4, 3, 3)
    ).sum().backward(),
    "conv2d with a constant": lambda: functional.conv2d(
        leaf(2, 4, 9, 9), leaf(6, 4, 3, 3).detach()
    ).sum().backward(),
    "gru cell": lambda: nn.GRUCell(8, 16).cuda()(leaf(2, 8)).sum().backward(),
    "flash attention": lambda: attention(SDPBackend.FLASH_ATTENTION, torch.half),
    "causal flash attention": lambda: attention(
        SDPBackend.FLASH_ATTENTION, torch.bfloat16, causal=True
    ),
    "efficient attention": lambda: attention(SDPBackend.EFFICIENT_ATTENTION, torch.half, value=32),
    "cudnn attention": lambda: attention(SDPBackend.CUDNN_ATTENTION, torch.half),
    "math attention": lambda: attention(SDPBackend.MATH, torch.float),
    "encoder layer": lambda: nn.TransformerEncoderLayer(64, 4, 128).cuda()(leaf(9, 2, 64))
    .sum()
    .backward(),
    "elementwise": lambda: (leaf(64, 64).exp() * 2).sum().backward(),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_flops_match_pytorchs_counter(name: str) -> None:
    with FlopCounterMode(display=False) as counter:
        flops, _ = charged(OPERATORS[name])
    assert flops == counter.get_total_flops()
    assert (flops > 0) == (name != "elementwise")


# Operators that PyTorch's counter does not know, with their FLOPs.
UNCOUNTED: dict[str, tuple[Callable[[], object], int]] = {
    "addbmm": (
        lambda: torch.addbmm(leaf(3, 5), leaf(2, 3, 4), leaf(2, 4, 5)),
        2 * 2 * 3 * 4 * 5,
    ),
    "a transposed convolution": (
        lambda: torch.ops.aten.slow_conv_transpose2d(
            leaf(2, 4, 9, 9).detach(), leaf(4, 6, 3, 3).detach(), [3, 3]
        ),
        2 * 2 * 4 * 9 * 9 * 6 * 3 * 3,
    ),
}


@pytest.mark.parametrize("name", UNCOUNTED)
def test_flops_that_the_counter_does_not_know(name: str) -> None:
    work, expected = UNCOUNTED[name]
    assert charged(work)[0] == expected


def test_a_grouped_convolution_has_a_cheaper_gradient_than_the_counter_reports() -> None:
    # The counter ignores the groups in the weight's gradient.
    forward = 2 * 2 * 6 * 7 * 7 * 2 * 3 * 3
    flops, _ = charged(
        lambda: functional.conv2d(leaf(2, 4, 9, 9), leaf(6, 2, 3, 3), groups=2).sum().backward()
    )
    assert flops == 3 * forward


def test_a_grouped_product_counts_each_row_once() -> None:
    rows, experts = leaf(64, 32, dtype=torch.bfloat16), leaf(4, 32, 16, dtype=torch.bfloat16)
    offsets = torch.tensor([16, 32, 48, 64], dtype=torch.int32, device="cuda")
    flops, _ = charged(lambda: torch._grouped_mm(rows.detach(), experts.detach(), offs=offsets))
    assert flops == 2 * 64 * 32 * 16


KERNELS = {SDPBackend.FLASH_ATTENTION: 0, SDPBackend.CUDNN_ATTENTION: 2}


def attention_gpu_seconds(backend: SDPBackend, share: float) -> float:
    tensor = 4 * 16 * 8192 * 128 * 2
    logsumexp = 4 * 16 * 8192 * 4
    return gpu_seconds(
        "attention",
        precision=PRECISIONS.index("bfloat16"),
        element_bytes=2,
        kernel=KERNELS[backend],
        batch=4,
        heads=16,
        queries=8192,
        keys=8192,
        flops=4 * 4 * 16 * 8192**2 * 128,
        share=share,
        bytes_read=4 * tensor + logsumexp,
        footprint_bytes=4 * tensor + logsumexp,
    )


@pytest.mark.parametrize("backend", KERNELS)
def test_causal_attention_does_half_of_the_counted_flops(backend: SDPBackend) -> None:
    def forward(causal: bool) -> float:
        q = torch.empty(4, 16, 8192, 128, device="cuda", dtype=torch.bfloat16)
        with sdpa_kernel(backend):
            return seconds(
                lambda: functional.scaled_dot_product_attention(q, q, q, is_causal=causal)
            )

    full = forward(causal=False)
    assert full == close(attention_gpu_seconds(backend, share=1))
    assert forward(causal=True) == close(attention_gpu_seconds(backend, share=0.5))
    assert 0.45 * full < forward(causal=True) < 0.6 * full


@pytest.mark.parametrize(
    ("dtype", "rate"),
    [
        (torch.float64, "float64"),
        (torch.float32, "float32"),
        (torch.float16, "float16"),
        (torch.bfloat16, "bfloat16"),
    ],
)
def test_each_dtype_has_its_rate(dtype: torch.dtype, rate: str) -> None:
    x = torch.empty(4096, 4096, device="cuda", dtype=dtype)
    assert seconds(lambda: x @ x) == close(LAUNCH_SECONDS + product_gpu_seconds(4096, rate))


def test_integers_have_their_own_rate() -> None:
    x = torch.empty(4096, 4096, device="cuda", dtype=torch.int8)
    assert seconds(lambda: torch._int_mm(x, x)) == close(
        LAUNCH_SECONDS + product_gpu_seconds(4096, "int8", result_bytes=4)
    )


@contextmanager
def set_to(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def product_of_floats() -> float:
    x = torch.empty(4096, 4096, device="cuda")
    return seconds(lambda: x @ x) - LAUNCH_SECONDS


def convolution_of_floats() -> float:
    x, weight = (torch.empty(*s, device="cuda") for s in ((32, 512, 64, 64), (512, 512, 3, 3)))
    return seconds(lambda: functional.conv2d(x, weight)) - LAUNCH_SECONDS


def test_tf32_when_the_program_allows_it() -> None:
    single = product_gpu_seconds(4096, "float32")
    tf32 = product_gpu_seconds(4096, "tfloat32")
    assert tf32 < 0.5 * single
    assert product_of_floats() == close(single)
    with set_to(torch.backends.cuda.matmul, "allow_tf32", True):
        assert product_of_floats() == close(tf32)
    torch.set_float32_matmul_precision("high")
    assert product_of_floats() == close(tf32)
    torch.set_float32_matmul_precision("highest")
    assert product_of_floats() == close(single)


def convolution_gpu_seconds(**fields: float) -> float:
    """Return the seconds of the convolution above."""
    elements = {"in": 32 * 512 * 64**2, "out": 32 * 512 * 62**2, "weight": 512 * 512 * 9}
    return gpu_seconds(
        "convolution",
        element_bytes=4,
        batch=32,
        in_channels=512,
        out_channels=512,
        in_h=64,
        in_w=64,
        out_h=62,
        out_w=62,
        kernel_h=3,
        kernel_w=3,
        flops=2 * 32 * 512 * 62 * 62 * 512 * 9,
        bytes_read=4 * (elements["in"] + elements["weight"]),
        bytes_written=4 * elements["out"],
        footprint_bytes=4 * sum(elements.values()),
        **fields,
    )


def test_convolutions_take_tf32_unless_forbidden() -> None:
    single, tf32 = (
        convolution_gpu_seconds(precision=PRECISIONS.index(dtype))
        for dtype in ("float32", "tfloat32")
    )
    assert tf32 < 0.5 * single
    assert convolution_of_floats() == close(tf32)
    with set_to(torch.backends.cudnn, "allow_tf32", False):
        assert convolution_of_floats() == close(single)


NUMBERS = 2**20
BYTES = 4 * NUMBERS


def ones(*sizes: int) -> Tensor:
    return torch.empty(*sizes, device="cuda")


def rows() -> Tensor:
    return torch.empty(8, dtype=torch.long, device="cuda")


def numbers(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.long, device="cuda")


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


def test_a_recurrent_cell_is_one_launch() -> None:
    cell = nn.LSTMCell(64, 64).cuda()
    x, state = ones(32, 64), (ones(32, 64), ones(32, 64))
    torch.cuda.synchronize()
    before = clock().host_seconds
    with torch.no_grad():
        cell(x, state)
    # Two products with biases, and the cell.
    assert clock().host_seconds - before == close(3 * LAUNCH_SECONDS)


@pytest.mark.parametrize("dtype", [torch.int16, torch.float32, torch.int64])
def test_a_sort_reads_and_writes_keys_and_positions_for_each_byte_of_a_key(
    dtype: torch.dtype,
) -> None:
    keys = torch.empty(100_000, dtype=dtype, device="cuda")
    moved = 2 * keys.numel() * (dtype.itemsize + 8)
    assert charged(lambda: keys.sort())[1] == dtype.itemsize * moved
    on_chip = keys.view(100, 1000)
    assert charged(lambda: on_chip.sort())[1] == moved


@pytest.mark.parametrize(("lists", "most"), [(1, 110), (2, 64), (3, 48)])
def test_a_launch_takes_fewer_tensors_of_more_lists(lists: int, most: int) -> None:
    def seconds_of(count: int) -> float:
        all_lists = [[ones(1) for _ in range(count)] for _ in range(lists)]
        before = clock().devices[0].kernels.memory
        if lists == 1:
            torch._foreach_neg(*all_lists)
        elif lists == 2:
            torch._foreach_add(*all_lists)
        else:
            torch._foreach_addcmul(*all_lists)
        return clock().devices[0].kernels.memory - before

    assert seconds_of(most + 1) == pytest.approx(2 * seconds_of(most), rel=0.01)


def test_gpus_of_a_rig_have_times_of_their_own() -> None:
    def seconds_on(index: int) -> float:
        x = torch.empty(1111, 1111, device=f"cuda:{index}")
        before = clock().devices[index].kernels.products
        x @ x
        return clock().devices[index].kernels.products - before

    a100, t4 = seconds_on(0), seconds_on(8)
    assert t4 > 1.5 * a100
    assert seconds_on(0) == pytest.approx(a100)


def test_memory_bound_work_takes_the_time_of_the_bandwidth() -> None:
    x = ones(2**28)
    assert seconds(lambda: x.mul_(2)) == close(
        LAUNCH_SECONDS + memory_gpu_seconds(x.nbytes, x.nbytes, footprint=x.nbytes)
    )
