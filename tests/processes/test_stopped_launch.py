"""A launch that a signal ended passes the signal on to its caller. No ranks are started."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from anyrig.devices.rig import Rig
from anyrig.processes import launch
from anyrig.processes.failure import GroupFailure
from anyrig.processes.launcher import GroupResult
from anyrig.processes.options import RunOptions
from anyrig.processes.stopping_signals import handled_by

FAILURE = GroupFailure(("the launcher was stopped",), ())


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (GroupResult(), 0),
        (GroupResult(FAILURE), 1),
        (GroupResult(FAILURE, signal.SIGTERM), 143),
        (GroupResult(None, signal.SIGINT), 130),
    ],
)
def test_the_exit_code_after_a_signal(result: GroupResult, code: int) -> None:
    assert result.exit_code == code


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_caller_after_the_ranks_have_ended(
    signum: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if signal.getsignal(signum) is signal.SIG_IGN:
        pytest.skip(f"{signum.name} is ignored, as nohup makes it")
    given: list[list[Path]] = []

    def end(*_: object, temporary_folders: list[Path]) -> GroupResult:
        given.append(temporary_folders)
        assert temporary_folders[0].is_dir()
        return GroupResult(FAILURE, signum)

    got: list[int] = []
    monkeypatch.setattr(launch, "run_group", end)
    with handled_by(lambda number, _: got.append(number)):
        if signum is signal.SIGINT:
            with pytest.raises(KeyboardInterrupt, match=r"^the launcher was stopped$"):
                launch.call_in_ranks(os.getpid, (), {}, Rig.detect(), RunOptions(processes=8))
            assert got == []
        else:
            launch.call_in_ranks(os.getpid, (), {}, Rig.detect(), RunOptions(processes=8))
            assert got == [signum]
            assert capsys.readouterr().err == "anyrig: the launcher was stopped\n"
    assert not given[0][0].exists()


def test_another_thread_leaves_signal_handlers_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def handle() -> None:
        with handled_by(print):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=handle)
    thread.start()
    thread.join()
    assert seen == [before]


def test_handlers_are_restored_after_an_error() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with suppress(ValueError), handled_by(print):
        assert signal.getsignal(signal.SIGTERM) is print
        raise ValueError
    assert signal.getsignal(signal.SIGTERM) is before
