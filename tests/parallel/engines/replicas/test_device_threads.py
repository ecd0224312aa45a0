"""One thread for each device, shared by all models, until the process ends."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from anyrig.parallel.engines.replicas.side_by_side import DeviceThreads

A, B = torch.device("meta", 0), torch.device("meta", 1)
THREADS = DeviceThreads()


def call(device: torch.device, function: Any) -> Future[Any]:
    started: Future[Any] = Future()
    THREADS.start_all([(device, started, function)])
    started.exception()  # waits for the call
    return started


def test_a_device_keeps_its_thread() -> None:
    first, again, other = (call(place, threading.current_thread).result() for place in (A, A, B))
    assert first is again
    assert first is not other
    assert first.name == "anyrig meta:0"
    assert first.daemon


def test_results_and_errors_come_back() -> None:
    assert call(A, lambda: 7).result() == 7
    failed = call(A, lambda: 1 // 0)
    assert isinstance(failed.exception(), ZeroDivisionError)
    ended = call(A, lambda: (_ for _ in ()).throw(SystemExit(3)))
    assert isinstance(ended.exception(), SystemExit)
    assert call(A, lambda: "still there").result() == "still there"


def test_nothing_is_kept_of_a_call() -> None:
    class Result:
        pass

    started = call(A, Result)
    gone = weakref.ref(started.result())
    del started
    call(A, lambda: None)  # after this, the thread has left the first call
    gc.collect()
    assert gone() is None


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Switch threads after a microsecond, so that every order occurs."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
def test_calls_that_wait_for_each_other_meet() -> None:
    """Sets of calls from many threads all meet: no set is queued behind half of another."""
    devices = [torch.device("meta", index) for index in range(8)]
    together = threading.Barrier(4, timeout=60)
    failed: list[BaseException] = []

    def start() -> None:
        together.wait()
        for _ in range(200):
            barrier = threading.Barrier(len(devices), timeout=20)
            calls = [(device, Future[Any](), barrier.wait) for device in devices]
            THREADS.start_all(calls)
            for _, started, _ in calls:
                if (error := started.exception()) is not None:
                    failed.append(error)
                    return

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failed
