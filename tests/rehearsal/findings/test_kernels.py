"""What kernels compute, and how they are launched: R08 to R11, R13 and R14."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from promises import BF16, Layers, check_promise, line_of, on_gpu, rehearse, seconds_of, training
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from anyrig.private_names import OLDEST
from anyrig.rehearsal.findings.channels_first import group_norm_keeps_channels_last

FLOAT32 = torch.float32


@contextmanager
def tfloat32(products: bool, convolutions: bool) -> Iterator[None]:
    backends = torch.backends
    before = backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32
    backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = products, convolutions
    try:
        yield
    finally:
        backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = before


def with_tfloat32(step: Callable[[], object], **on: bool) -> Callable[[], None]:
    def run() -> None:
        with tfloat32(**on):
            step()

    return run


def test_products_in_float32() -> None:
    def step() -> Callable[[], Tensor]:
        return training(Layers(dtype=FLOAT32), on_gpu(4096, 4096, dtype=FLOAT32))

    finding = check_promise(
        "R09",
        step(),
        with_tfloat32(step(), products=True, convolutions=True),
        line_of(Layers, "layer(x)"),
    )
    assert 'set_float32_matmul_precision("high")' in finding.remedy
    assert "cudnn" not in finding.remedy


@pytest.mark.parametrize(("layers", "steps"), [(100, 12), (40, 12)])
def test_products_of_a_host_that_waits_until_a_stream_has_room(layers: int, steps: int) -> None:
    """A stream holds 1,024 launches: those of two steps, or of four."""

    def step() -> Callable[[], Tensor]:
        return training(Layers(1024, layers, FLOAT32), on_gpu(4096, 1024, dtype=FLOAT32))

    check_promise(
        "R09",
        step(),
        with_tfloat32(step(), products=True, convolutions=True),
        line_of(Layers, "layer(x)"),
        steps=steps,
    )


class Convolutions(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Conv2d(64, 128, 3, padding=1, dtype=dtype)
        self.norm = nn.BatchNorm2d(128, dtype=dtype)
        self.second = nn.Conv2d(128, 128, 3, padding=1, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return torch.relu(self.second(x))  # the larger one


def convolutions(layout: torch.memory_format, dtype: torch.dtype = BF16) -> Callable[[], Tensor]:
    batch = on_gpu(64, 64, 56, 56, dtype=dtype)().to(memory_format=layout)
    return training(Convolutions(dtype).to(memory_format=layout), lambda: batch)  # type: ignore[call-overload]


def test_convolutions_with_the_channels_first() -> None:
    check_promise(
        "R10",
        convolutions(torch.contiguous_format),
        convolutions(torch.channels_last),
        line_of(Convolutions, "# the larger one"),
    )


def test_group_norms_put_the_channels_first_until_2_15() -> None:
    def step(layout: torch.memory_format) -> Callable[[], Tensor]:
        model = Convolutions(BF16)
        model.norm = nn.GroupNorm(8, 128, dtype=BF16)  # type: ignore[assignment]
        batch = on_gpu(64, 64, 56, 56)().to(memory_format=layout)
        return training(model.to(memory_format=layout), lambda: batch)  # type: ignore[call-overload]

    assert OLDEST < (2, 15), "group_norm_keeps_channels_last can go"
    assert group_norm_keeps_channels_last() is (torch.__version__ >= (2, 15))
    given = step(torch.contiguous_format), step(torch.channels_last)
    if group_norm_keeps_channels_last():
        check_promise("R10", *given, line_of(Convolutions, "# the larger one"))
        return
    first, last = map(rehearse, given)
    assert seconds_of(last) > 0.98 * seconds_of(first)
    assert "R10" not in {finding.code for finding in (*first.findings, *last.findings)}


def test_convolutions_in_float32() -> None:
    last = torch.channels_last
    finding = check_promise(
        "R09",
        with_tfloat32(convolutions(last, FLOAT32), products=True, convolutions=False),
        with_tfloat32(convolutions(last, FLOAT32), products=True, convolutions=True),
        line_of(Convolutions, "# the larger one"),
    )
    assert "torch.backends.cudnn.allow_tf32" in finding.remedy


class Narrow(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(4096, width, dtype=BF16)
        self.down = nn.Linear(width, 4096, dtype=BF16)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.up(x))  # the slower one
        return self.down(x)


def test_a_layer_slightly_larger_than_its_tiles() -> None:
    def step(width: int) -> Callable[[], Tensor]:
        return training(Narrow(width), on_gpu(4096, 4096))

    finding = check_promise("R11", step(2056), step(2048), line_of(Narrow, "self.up(x)"))
    assert finding.remedy.startswith("Use 2048 instead of 2056")


@pytest.mark.parametrize(("width", "is_found"), [(1080, False), (1072, True)])
def test_a_layer_is_rounded_by_at_most_5_percent(width: int, is_found: bool) -> None:
    found = rehearse(training(Narrow(width), on_gpu(4096, 4096))).findings
    assert [finding.code for finding in found] == ["R11"] * is_found


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4096, 4096, dtype=BF16)
        self.down = nn.Linear(4096, 4096, bias=False, dtype=BF16)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))


class Checkpointed(nn.Module):
    def __init__(self, recomputes: bool, reenters: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.recomputes, self.options = recomputes, {"use_reentrant": reenters}

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, **self.options) if self.recomputes else block(x)
        return x


def test_activations_that_are_computed_twice() -> None:
    def step(recomputes: bool) -> Callable[[], Tensor]:
        return training(Checkpointed(recomputes), on_gpu(4096, 4096))

    finding = check_promise("R13", step(True), step(False), line_of(Block, "self.down("))
    assert "computes 6 calls of the forward pass again" in finding.text
    assert "Keeping their results takes about 192.00 MiB" in finding.text  # 6 of 4096 x 4096


class HalfAgain(torch.autograd.Function):
    """A layer whose backward pass calls it with half of the samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, bias = ctx.saved_tensors
        half = functional.linear(x[: len(x) // 2], weight, bias)
        return gradient @ weight + half.sum(), gradient.T @ x, gradient.sum(0)


class HalvedLayer(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return HalfAgain.apply(x, self.weight, self.bias)


def test_calls_of_other_sizes_are_not_computed_twice() -> None:
    model = nn.Sequential(*[HalvedLayer(4096, 4096, dtype=BF16) for _ in range(3)])
    assert rehearse(training(model, on_gpu(4096, 4096))).findings == ()


def test_a_large_batch_that_needs_its_checkpoints() -> None:
    step = training(Checkpointed(True), on_gpu(4096, 4096))

    def with_an_empty_gpu_beside() -> None:
        step()
        torch.ones(1, device="cuda:1")

    with_an_empty_gpu_beside()
    # Take the memory that is still free, so that the activations would not fit.
    free, _ = torch.cuda.mem_get_info()
    taken = torch.empty(free - (64 << 20), dtype=torch.uint8, device="cuda")
    assert rehearse(with_an_empty_gpu_beside).findings == ()
    del taken
    torch.cuda.empty_cache()


def small(batch: int = 64) -> tuple[Any, Callable[[], Tensor]]:
    model = Layers(256, 10)
    return model, training(model, on_gpu(batch, 256))


def test_many_small_kernels() -> None:
    _, fault = small()
    _, step = small()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    # An optimizer without gradients: it launches nothing, and ends the step.
    ends = torch.optim.SGD([nn.Parameter(torch.zeros(1))])

    def replay() -> None:
        graph.replay()
        ends.step()

    check_promise("R08", fault, replay, line_of(Layers, "layer(x)"))


@pytest.mark.usefixtures("has_free_memory")
def test_memory_for_a_larger_batch() -> None:
    before, after = (rehearse(training(Layers(), on_gpu(n, 4096))) for n in (512, 1024))
    (finding,) = before.findings
    assert (finding.code, finding.line) == ("R14", None)
    assert f"; the kernels of {line_of(Layers, 'layer(x)')} gain most." in finding.text
    assert finding.remedy.startswith(
        "Where the program makes its batches, make them twice as large"
    )
    saved = seconds_of(before) - seconds_of(after) / 2
    assert finding.saved_seconds == pytest.approx(saved, abs=0.02 * seconds_of(before))


def test_a_batch_that_fills_the_memory() -> None:
    assert rehearse(training(Layers(), on_gpu(512, 4096))).findings == ()


@pytest.mark.usefixtures("has_free_memory")
def test_memory_that_the_allocator_keeps_is_in_use() -> None:
    kept = torch.empty(45 << 30, dtype=torch.uint8, device="cuda")
    del kept
    assert rehearse(training(Layers(), on_gpu(512, 4096))).findings == ()


def test_double_precision_is_no_finding() -> None:
    step = training(Layers(2048, dtype=torch.float64), on_gpu(2048, 2048, dtype=torch.float64))
    assert "R09" not in {finding.code for finding in rehearse(step).findings}
