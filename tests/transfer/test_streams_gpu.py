"""Making streams current, from several threads at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from anyrig.transfer.streams import copy_stream, using


@pytest.fixture
def device_zero() -> Iterator[None]:
    yield
    torch.cuda.set_device(0)


@pytest.mark.gpus(3)
@pytest.mark.usefixtures("device_zero")
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1,)], ids=str)
@pytest.mark.parametrize("current", [0, 1, 2])
def test_streams_and_device_are_current_within_only(current: int, order: tuple[int, ...]) -> None:
    streams = [copy_stream(torch.device("cuda", i), "to peer") for i in order]
    before = [torch.cuda.current_stream(i) for i in range(3)]
    for raises in (False, True):
        torch.cuda.set_device(current)
        with suppress(KeyError), using(*(stream for stream in streams if stream is not None)):
            for index, stream in zip(order, streams, strict=True):
                assert stream is not None
                assert torch.cuda.current_stream(index).stream_id == stream.stream_id
            assert torch.cuda.current_device() == order[-1]
            if raises:
                raise KeyError
        assert [torch.cuda.current_stream(i) for i in range(3)] == before
        assert torch.cuda.current_device() == current


@pytest.mark.gpus(1)
def test_two_threads_may_use_one_stream_at_a_time() -> None:
    device = torch.device("cuda:0")
    shared = copy_stream(device, "to peer")
    assert shared is not None
    entered, left = threading.Event(), threading.Event()
    seen: list[torch.Stream] = []

    def other() -> None:
        own = torch.cuda.Stream(device)
        with torch.cuda.stream(own):
            with using(shared):
                entered.set()
                assert left.wait(30)
            seen.extend([torch.cuda.current_stream(device), own])

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(30)
    before = torch.cuda.current_stream(device)
    with using(shared):
        pass
    assert torch.cuda.current_stream(device) == before
    left.set()
    thread.join(30)
    assert seen[0] == seen[1]
