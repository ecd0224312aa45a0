"""Operations that the capture of a CUDA graph rejects, and streams that join or wait for it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from captured_graphs import REGISTERS_GENERATORS, captured, replayable_afterwards

from anyrig.virtual import installation

# A capture that fails before its first kernel also leaves an empty graph.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
    pytest.mark.usefixtures("graph_device"),
]

DEVICE = 5  # used only by the tests of graphs
MIB = 2**20


@pytest.mark.parametrize(
    "call",
    [
        lambda tensor: tensor.sum().item(),
        lambda tensor: tensor.nonzero(),
        lambda tensor: tensor[tensor > 0],
        lambda tensor: torch.cuda.synchronize(),
        lambda tensor: torch.cuda.current_stream().synchronize(),
        lambda tensor: torch.cuda.current_stream().query(),
        lambda tensor: tensor.copy_(torch.ones(4).pin_memory()),
    ],
)
def test_waiting_for_the_stream_invalidates_the_capture(
    call: Callable[[torch.Tensor], object],
) -> None:
    tensor = torch.ones(4, device="cuda")
    reason = "operation not permitted when stream is capturing"

    def work() -> None:
        with pytest.raises(torch.AcceleratorError, match=reason) as first:
            call(tensor)
        assert first.value.error_code == 900

    with pytest.raises(torch.AcceleratorError, match="failed due to a previous error") as second:
        captured(work)
    assert second.value.error_code == 901
    assert not torch.cuda.is_current_stream_capturing()


def test_pageable_host_memory_cannot_be_copied() -> None:
    with pytest.raises(RuntimeError, match="unless the CPU tensor is pinned"):
        captured(lambda: torch.ones(3).cuda(non_blocking=True))
    replayable_afterwards()


def test_an_event_of_a_capture_cannot_be_queried() -> None:
    event = torch.cuda.Event()

    def work() -> None:
        event.record()
        with pytest.raises(torch.AcceleratorError, match="last recorded in a capturing stream"):
            event.query()

    with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
        captured(work)


def test_streams_join_a_capture_through_events() -> None:
    source = torch.ones(4, device="cuda")
    side = torch.cuda.Stream()
    results = []

    def work(join: bool) -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert torch.cuda.is_current_stream_capturing()
            results.append(source + 1)
        if join:
            torch.cuda.current_stream().wait_stream(side)

    with pytest.raises(torch.AcceleratorError, match="unjoined work"):
        captured(lambda: work(join=False))
    graph = captured(lambda: work(join=True))
    source.fill_(4)
    graph.replay()
    assert results[-1].tolist() == [5.0] * 4


def test_a_capture_cannot_wait_for_work_outside_of_it() -> None:
    event = torch.cuda.Event()
    event.record()

    def work() -> None:
        with pytest.raises(torch.AcceleratorError, match="uncaptured work in another stream"):
            torch.cuda.current_stream().wait_event(event)

    with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
        captured(work)
    replayable_afterwards()


def test_two_captures_cannot_be_merged() -> None:
    other, side, event = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Event()

    def work() -> None:
        event.record()
        with torch.cuda.stream(side):
            other.capture_begin(capture_error_mode="relaxed")
            with pytest.raises(torch.AcceleratorError, match="merge of separate capture"):
                side.wait_event(event)
            with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
                other.capture_end()

    with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
        captured(work)
    replayable_afterwards()


def test_the_default_stream_cannot_wait_for_a_capture() -> None:
    event = torch.cuda.Event()

    def work() -> None:
        event.record()
        with pytest.raises(torch.AcceleratorError, match="make the legacy stream depend on a"):
            torch.cuda.default_stream().wait_event(event)

    with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
        captured(work)
    replayable_afterwards()


def test_a_replay_waits_for_the_end_of_a_capture() -> None:
    graph = captured(lambda: torch.ones(1, device="cuda"))

    def work() -> None:
        if REGISTERS_GENERATORS:  # found on the host, before the call that ends the capture
            with pytest.raises(RuntimeError, match="Cannot prepare for replay during capturing"):
                graph.replay()
            torch.ones(1, device="cuda")
            return
        with pytest.raises(torch.AcceleratorError, match="when stream is capturing"):
            graph.replay()

    if REGISTERS_GENERATORS:
        captured(work)
    else:
        with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
            captured(work)
    graph.replay()


@pytest.mark.gpus(2)
def test_another_device_may_be_waited_for_in_a_capture() -> None:
    source = torch.ones(3, device="cuda")
    results = []

    def work() -> None:
        torch.cuda.synchronize(0)
        results.append(source + 1)

    captured(work).replay()
    assert results[0].tolist() == [2.0] * 3


def test_before_2_14_a_capture_that_fails_keeps_its_memory() -> None:
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()

    def work() -> None:
        torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()

    with pytest.raises(torch.AcceleratorError):
        captured(work)
    gc.collect()
    torch.cuda.empty_cache()
    kept = 20 * MIB if torch.__version__ < (2, 14) else 0
    assert torch.cuda.memory_reserved() == reserved + kept


@pytest.mark.skipif(torch.__version__ >= (2, 13), reason="from 2.13 on the capture ends")
def test_before_2_13_no_cache_is_emptied_once_a_capture_has_failed() -> None:
    with pytest.raises(torch.AcceleratorError):
        captured(torch.cuda.synchronize)
    del_me = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    reserved = torch.cuda.memory_reserved()
    del del_me
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved


def test_the_default_stream_cannot_be_captured() -> None:
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()


@pytest.mark.skipif(
    installation() is None and REGISTERS_GENERATORS,
    reason="before 2.12 the destructor of a graph that was refused raises, which ends the process",
)
def test_a_stream_is_captured_once() -> None:
    kind, words = (
        (RuntimeError, "Cannot register the state during capturing stage")
        if REGISTERS_GENERATORS
        else (torch.AcceleratorError, "cannot be performed in the present state")
    )

    def work() -> None:
        with pytest.raises(kind, match=words):
            torch.cuda.CUDAGraph().capture_begin()

    captured(lambda: (work(), torch.ones(1, device="cuda")))


def test_another_stream_cannot_reserve_memory_during_a_capture() -> None:
    other = torch.cuda.Stream()

    def work() -> None:
        with torch.cuda.stream(other), pytest.raises(torch.AcceleratorError, match="capturing"):
            torch.empty(64 * MIB, device="cuda")

    with pytest.raises(torch.AcceleratorError, match="previous error"):
        captured(work)
    relaxed = captured(
        lambda: (_empty_on(other), torch.ones(1, device="cuda")), capture_error_mode="relaxed"
    )
    relaxed.replay()


def test_another_thread_may_reserve_memory_during_a_thread_local_capture() -> None:
    other = torch.cuda.Stream()

    def work() -> None:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(_empty_on, other).result(timeout=60)
        torch.ones(1, device="cuda")

    captured(work, capture_error_mode="thread_local").replay()
    with pytest.raises(torch.AcceleratorError):
        captured(work)
    replayable_afterwards()


def _empty_on(stream: torch.cuda.Stream) -> None:
    # Of a new size each time: once a capture has failed, PyTorch may keep what was freed.
    global _taken_bytes
    _taken_bytes += 64 * MIB
    with torch.cuda.stream(stream):
        torch.empty(_taken_bytes, dtype=torch.uint8, device="cuda")


_taken_bytes = 0


def test_a_capture_that_runs_out_of_memory_raises() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        captured(lambda: torch.empty(2**40, device="cuda"))
    replayable_afterwards()
