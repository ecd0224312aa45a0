"""Programs whose virtual time is computed by hand."""

from __future__ import annotations

import pytest
import torch
from gpu_rates import (
    COPY_LAUNCH_SECONDS,
    COPY_START_SECONDS,
    LAUNCH_SECONDS,
    NVLINK,
    PAGEABLE,
    PCIE,
    memory_gpu_seconds,
    product_gpu_seconds,
    product_seconds,
    seconds,
)
from torch import Tensor

from anyrig.virtual import clock

SIZE = 8192
COPIED_BYTES = 2**29


def close(value: float) -> object:
    return pytest.approx(value, rel=0.01)


def square(device: int = 0) -> Tensor:
    return torch.empty(SIZE, SIZE, device=device, dtype=torch.bfloat16)


def on_gpu(device: int = 0) -> Tensor:
    return torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device)


@pytest.fixture(scope="module")
def pinned() -> Tensor:
    return torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)


@pytest.fixture(scope="module")
def pageable() -> Tensor:
    return torch.empty(COPIED_BYTES, dtype=torch.uint8)


def test_one_matrix_product() -> None:
    x = square()
    assert seconds(lambda: x @ x) == close(product_seconds(SIZE))


def test_one_sum_reads_twice_and_writes_once() -> None:
    x = square()
    y = x.clone()
    assert seconds(lambda: x + y) == close(
        LAUNCH_SECONDS + memory_gpu_seconds(2 * x.nbytes, x.nbytes)
    )


def test_a_pinned_asynchronous_copy_overlaps_with_a_product(pinned: Tensor) -> None:
    x, side = square(), torch.cuda.Stream()

    def copy_and_multiply() -> None:
        with torch.cuda.stream(side):
            pinned.to("cuda", non_blocking=True)
        for _ in range(4):
            x @ x
        torch.cuda.current_stream().wait_stream(side)

    copy = COPY_LAUNCH_SECONDS + COPY_START_SECONDS + COPIED_BYTES / PCIE
    product = 4 * product_gpu_seconds(SIZE) + LAUNCH_SECONDS + COPY_LAUNCH_SECONDS
    assert seconds(copy_and_multiply) == close(max(copy, product))


@pytest.mark.parametrize("why", ["one stream", "pageable", "synchronous"])
def test_other_copies_do_not_overlap(why: str, pinned: Tensor, pageable: Tensor) -> None:
    x, side = square(), torch.cuda.Stream()
    source = pageable if why == "pageable" else pinned
    stream = torch.cuda.current_stream() if why == "one stream" else side

    def copy_then_multiply() -> None:
        with torch.cuda.stream(stream):
            source.to("cuda", non_blocking=why != "synchronous")
        for _ in range(4):
            x @ x

    rate = PAGEABLE if why == "pageable" else PCIE
    copy = COPY_LAUNCH_SECONDS + COPY_START_SECONDS + COPIED_BYTES / rate
    product = 4 * product_gpu_seconds(SIZE)
    assert seconds(copy_then_multiply) == close(copy + product)


@pytest.mark.parametrize(
    ("is_pinned", "non_blocking", "waits"),
    [(True, True, False), (True, False, True), (False, True, True), (False, False, True)],
)
def test_the_host_waits_for_copies_as_with_cuda(
    is_pinned: bool, non_blocking: bool, waits: bool
) -> None:
    host = torch.empty(2**26, dtype=torch.uint8, pin_memory=is_pinned)
    on_device = torch.empty(2**26, dtype=torch.uint8, device="cuda")
    for destination, source in ((on_device, host), (host, on_device)):
        torch.cuda.synchronize()
        before = clock().host_seconds
        destination.copy_(source, non_blocking=non_blocking)
        passed = clock().host_seconds - before
        rate = PCIE if is_pinned else PAGEABLE
        copy = COPY_START_SECONDS + 2**26 / rate if waits else 0
        assert passed == close(COPY_LAUNCH_SECONDS + copy)


def test_two_devices_in_sequence() -> None:
    x = square()

    def through_both() -> None:
        y = (x @ x).to("cuda:1")
        y @ y

    copy = x.nbytes / NVLINK
    product = product_gpu_seconds(SIZE)
    assert seconds(through_both) == close(2 * product + copy)


def test_two_devices_at_the_same_time() -> None:
    x, y = square(0), square(1)

    def both() -> None:
        x @ x
        y @ y

    assert seconds(both) == close(product_seconds(SIZE) + LAUNCH_SECONDS)


def test_kernels_of_two_streams_share_the_gpu() -> None:
    x, side = square(), torch.cuda.Stream()

    def on_two_streams() -> None:
        x @ x
        with torch.cuda.stream(side):
            x @ x

    product = product_gpu_seconds(SIZE)
    assert seconds(on_two_streams) == close(2 * product)


def test_elapsed_time_is_the_time_between_two_events() -> None:
    x = square()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    x @ x
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) == close(1e3 * product_seconds(SIZE))
    assert clock().host_seconds == clock().devices[0].streams[0].done_seconds


def test_sleep_takes_time_but_no_multiprocessors() -> None:
    x, side = square(), torch.cuda.Stream()

    def sleep_and_multiply() -> None:
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_410_000)  # 1 ms
        x @ x

    assert seconds(lambda: torch.cuda._sleep(1_410_000)) == close(1e-3 + LAUNCH_SECONDS)
    assert seconds(sleep_and_multiply) == close(
        max(1e-3 + LAUNCH_SECONDS, product_seconds(SIZE) + LAUNCH_SECONDS)
    )


def test_the_reading() -> None:
    x = square()
    torch.cuda.synchronize()
    before = clock()
    (x @ x).to("cuda:1")
    after = clock()
    first, second = (
        {name: getattr(new, name) - getattr(old, name) for name in ("compute_seconds",
         "copy_seconds", "collective_seconds", "flops", "memory_bytes")}
        for old, new in zip(before.devices[:2], after.devices[:2], strict=True)
    )  # fmt: skip
    assert first["flops"] == 2 * SIZE**3
    assert first["memory_bytes"] == 3 * x.nbytes
    assert first["compute_seconds"] == close(product_gpu_seconds(SIZE))
    assert first["copy_seconds"] == close(x.nbytes / NVLINK)
    assert second["copy_seconds"] == close(x.nbytes / NVLINK)
    assert second["compute_seconds"] == first["collective_seconds"] == 0
    assert after.done_seconds > after.host_seconds
    text = str(after)
    assert text.startswith("host at ")
    assert len(text.splitlines()) == 1 + torch.cuda.device_count()
