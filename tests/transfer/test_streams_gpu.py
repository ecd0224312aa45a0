"""Making streams current, from several threads at a time."""

from __future__ import annotations

import threading

import pytest
import torch

from anyrig.transfer.streams import copy_stream, using


@pytest.mark.gpus(2)
def test_streams_and_device_are_current_within_only() -> None:
    first, second = (copy_stream(torch.device("cuda", i), "to peer") for i in (0, 1))
    assert first is not None
    assert second is not None
    before = [torch.cuda.current_stream(i) for i in (0, 1)]
    torch.cuda.set_device(0)
    with using(first, second):
        assert torch.cuda.current_stream(0).stream_id == first.stream_id
        assert torch.cuda.current_stream(1).stream_id == second.stream_id
        assert torch.cuda.current_device() == 1
    assert [torch.cuda.current_stream(i) for i in (0, 1)] == before
    assert torch.cuda.current_device() == 0


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
                assert left.wait(10)
            seen.extend([torch.cuda.current_stream(device), own])

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(10)
    before = torch.cuda.current_stream(device)
    with using(shared):
        pass
    assert torch.cuda.current_stream(device) == before
    left.set()
    thread.join(10)
    assert seen[0] == seen[1]
