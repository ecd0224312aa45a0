"""Functions that run concurrently on their devices: order, errors, interrupts."""

from __future__ import annotations

import _thread
import threading
import time
import traceback

import pytest
import torch

from anyrig.parallel.engines.replicas.meeting import Meeting, is_inside
from anyrig.parallel.engines.replicas.side_by_side import DeviceThreads, SideBySide

pytestmark = pytest.mark.gpus(3)

DEVICES = [torch.device("cuda", index) for index in range(3)]


def run(functions: list[object], side: SideBySide | None = None) -> list[object]:
    return (side or SideBySide(DEVICES)).run(Meeting(DEVICES), functions, [((), {})] * 3)  # type: ignore[arg-type]


def test_the_first_runs_in_the_callers_thread_and_results_keep_their_order() -> None:
    found = run([threading.current_thread] * 3)
    assert found[0] is threading.current_thread()
    assert [thread.name for thread in found[1:]] == ["anyrig cuda:1", "anyrig cuda:2"]  # type: ignore[attr-defined]


def test_they_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=20)
    assert sorted(run([barrier.wait] * 3)) == [0, 1, 2]  # type: ignore[type-var]


def test_whoever_failed_by_itself_is_raised() -> None:
    def fail() -> None:
        raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError, match="mine") as raised:
        run([lambda: None, lambda: time.sleep(0.05), fail])
    assert "in the replica on cuda:2" in "".join(traceback.format_exception(raised.value))


def test_they_know_that_they_are_inside() -> None:
    assert run([is_inside] * 3) == [True] * 3
    assert not is_inside()

    def within() -> bool:
        run([is_inside] * 3)
        return is_inside()

    assert run([within, lambda: None, is_inside]) == [True, None, True]
    assert not is_inside()


def test_after_an_interrupt_the_next_run_waits_for_what_was_left() -> None:
    side = SideBySide(DEVICES)
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go.wait(20)
        ended.set()

    def interrupt() -> None:
        assert begun.wait(20)  # a call that has not begun is cancelled
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([interrupt, slow, lambda: None], side)
    assert not ended.is_set()
    go.set()
    side.wait()
    assert ended.is_set()
    assert run([lambda: 1, lambda: 2, lambda: 3], side) == [1, 2, 3]


def test_an_interrupt_while_others_are_waited_for_stops_them() -> None:
    meeting, side = Meeting(DEVICES[:2]), SideBySide(DEVICES)
    stopped: list[bool] = []

    def interrupt() -> None:
        _thread.interrupt_main()
        deadline = time.monotonic() + 60
        while not meeting.stopped and time.monotonic() < deadline:
            time.sleep(0.001)
        stopped.append(meeting.stopped)

    with pytest.raises(KeyboardInterrupt):
        side.run(meeting, [lambda: None, interrupt], [((), {})] * 2)
    side.wait()
    assert stopped == [True]


def test_an_interrupt_while_calls_are_queued_cancels_them(monkeypatch: pytest.MonkeyPatch) -> None:
    side, called = SideBySide(DEVICES), []

    def interrupted(self: object, calls: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DeviceThreads, "start_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run([lambda: None, lambda: called.append(1), lambda: called.append(2)], side)
    waiting = threading.Thread(target=side.wait, daemon=True)
    waiting.start()
    waiting.join(20)
    assert not waiting.is_alive()  # it does not wait for calls that were never queued
    assert run([lambda: 1, lambda: 2, lambda: 3], side) == [1, 2, 3]
    assert called == []
