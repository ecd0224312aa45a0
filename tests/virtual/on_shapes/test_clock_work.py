"""The work of operators: FLOPs as PyTorch counts them, launches, and rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from charged_work import charged, close, leaf, ones
from gpu_rates import (
    LAUNCH_SECONDS,
    PRECISIONS,
    gpu_seconds,
    product_gpu_seconds,
    seconds,
)
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyrig.virtual import clock


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


def test_a_recurrent_cell_is_one_launch() -> None:
    cell = nn.LSTMCell(64, 64).cuda()
    x, state = ones(32, 64), (ones(32, 64), ones(32, 64))
    torch.cuda.synchronize()
    before = clock().host_seconds
    with torch.no_grad():
        cell(x, state)
    # Two products with biases, and the cell.
    assert clock().host_seconds - before == close(3 * LAUNCH_SECONDS)


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
