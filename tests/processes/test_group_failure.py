"""The cause of a failure among the ends of several ranks."""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from anyrig.cli.group_end import error_of_group
from anyrig.errors import OtherRankError, RankWaitError
from anyrig.processes.failure import GroupFailure, explain_failure
from anyrig.processes.launcher import GroupResult
from anyrig.processes.rank_end import Ending, RankEnd, note_exception, read_end

GLOO = "RuntimeError: [gloo/transport/tcp/"
TIMED_OUT = f"{GLOO}unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"
CLOSED = f"{GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:14741."
NCCL = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG ID 0 Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600012 milliseconds"
)
VIRTUAL = (
    "torch.distributed.DistBackendError: [Rank 0 of group 1] WorkNCCL(SeqNum=2) timed out: rank 1 "
    "(global rank 2) did not take part within 4000 ms. Either it is still busy"
)


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Write the files of a rank that ended, and read its end."""
    numbers = itertools.count()

    def end(
        code: int,
        error: str = "",
        *,
        at: str = "",
        stopped: bool = False,
        suspended: bool = False,
        line: int = 5,
        because: BaseException | None = None,
    ) -> RankEnd:
        rank = next(numbers)
        folder = tmp_path / str(rank)
        folder.mkdir()
        header = f'Traceback (most recent call last):\n  File "train.py", line {line}, in step\n'
        if error.startswith("terminate"):
            (folder / "stderr.log").write_text(f"noise\n{error}\n[W] late")
        elif error:
            note = {"error": error, "traceback": header + error}
            (folder / "exception.json").write_text(json.dumps(note))
        if because is not None:
            monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(folder / "error.json"))
            note_exception(because)
        if at:
            (folder / "stack.txt").write_text(f"Current thread 0x1 (most recent call first):\n{at}")
        return read_end(rank, folder, code, was_stopped=stopped, suspended=suspended)

    return end


TORCH = Path(torch.__file__).parent
WAITS = f'  File "{TORCH}/distributed/c10d.py", line 1 in wait\n  File "train.py", line 5 in step\n'
SLEEPS = '  File "train.py", line 9 in load\n'


def causes(failure: GroupFailure) -> dict[int, Ending]:
    return {end.rank: end.ending for end in failure.ends}


def test_a_rank_stopped_outside_a_wait_is_missing(ended) -> None:
    failure = explain_failure(
        [
            ended(1, TIMED_OUT),
            ended(-15, at=WAITS, stopped=True),
            ended(-9, at=SLEEPS, stopped=True),
        ]
    )
    assert causes(failure) == {2: Ending.MISSING, 0: Ending.TIMED_OUT, 1: Ending.STOPPED}
    assert failure.first is not None
    assert failure.first.place == "train.py:9 in load"


def test_a_rank_that_waited_elsewhere_is_missing(ended) -> None:
    elsewhere = ended(1, CLOSED, line=7)
    failure = explain_failure([elsewhere, ended(1, TIMED_OUT), ended(1, TIMED_OUT)])
    assert causes(failure)[0] is Ending.MISSING
    all_timed_out = [ended(1, TIMED_OUT, line=line) for line in (5, 7, 5)]
    assert causes(explain_failure(all_timed_out))[4] is Ending.MISSING
    cut_short = [
        ended(1, error, line=line)
        for error, line in zip((CLOSED, TIMED_OUT, TIMED_OUT), (5, 7, 5), strict=True)
    ]
    assert causes(explain_failure(cut_short))[7] is Ending.MISSING
    one_timed_out = [
        ended(1, error, line=line)
        for error, line in zip((CLOSED, TIMED_OUT, CLOSED), (5, 7, 5), strict=True)
    ]
    assert causes(explain_failure(one_timed_out))[10] is Ending.MISSING
    unknown = [ended(1, TIMED_OUT), ended(-15, stopped=True), ended(-15, stopped=True)]
    assert causes(explain_failure(unknown))[12] is Ending.TIMED_OUT


def test_a_suspended_rank_is_missing_wherever_it_resumed(ended) -> None:
    woken = {"at": WAITS, "stopped": True}
    failure = explain_failure(
        [ended(1, TIMED_OUT), ended(-15, **woken), ended(-15, suspended=True, **woken)]
    )
    assert causes(failure) == {2: Ending.MISSING, 0: Ending.TIMED_OUT, 1: Ending.STOPPED}


def test_a_rank_named_by_the_message_is_missing(ended) -> None:
    failure = explain_failure(
        [
            ended(1, VIRTUAL),
            ended(-15, at=SLEEPS, stopped=True),
            ended(-15, at=WAITS, stopped=True),
        ]
    )
    assert causes(failure)[2] is Ending.MISSING
    assert causes(failure)[1] is Ending.STOPPED


def test_the_watchdog_of_nccl_is_a_time_limit_though_it_aborts(ended) -> None:
    failure = explain_failure([ended(-6, NCCL), ended(-15, at=SLEEPS, stopped=True)])
    assert causes(failure) == {1: Ending.MISSING, 0: Ending.TIMED_OUT}


def test_errors_caused_by_other_ranks_are_no_cause(ended) -> None:
    because = OtherRankError("rank 1 on here raised within only_first_rank()")
    failure = explain_failure([ended(1, "mine", because=because), ended(1, "ValueError: 3")])
    assert causes(failure) == {1: Ending.FAILED, 0: Ending.FOLLOWED}
    late = RankWaitError("in words that nobody reads", [3])
    failure = explain_failure([ended(1, "mine", because=late), ended(-15, at=WAITS, stopped=True)])
    assert causes(failure) == {3: Ending.MISSING, 2: Ending.TIMED_OUT}
    lost = RankWaitError("the store is lost")
    failure = explain_failure([ended(1, "mine", because=lost), ended(-9)])
    assert causes(failure) == {5: Ending.KILLED, 4: Ending.LOST_CONNECTION}


def test_an_exit_caused_by_another_rank_is_no_cause(ended) -> None:
    leaving = SystemExit(1)
    leaving.__context__ = OtherRankError("rank 0 failed")  # as `sys.exit(1)` where it is handled
    assert ended(1, because=leaving).ending is Ending.FOLLOWED
    assert ended(1, because=SystemExit(1)).ending is Ending.FAILED
    assert ended(1, because=ValueError("3")).ending is Ending.FAILED
    # A rank that was killed while it waited did not leave.
    assert ended(-9, because=OtherRankError()).ending is Ending.KILLED


def test_another_timeout_is_an_error_of_the_rank(ended) -> None:
    error = "requests.exceptions.ReadTimeout: HTTPSConnectionPool: Read timed out."
    failure = explain_failure([ended(1, error), ended(-15, at=SLEEPS, stopped=True)])
    assert causes(failure) == {0: Ending.FAILED, 1: Ending.STOPPED}
    assert "last error: requests.exceptions.ReadTimeout" in str(failure)


def test_a_finished_rank_is_the_cause_only_if_a_rank_waited(ended) -> None:
    waited = explain_failure([ended(1, CLOSED), ended(0)])
    assert causes(waited) == {1: Ending.LEFT, 0: Ending.LOST_CONNECTION}
    failed = explain_failure([ended(1, "ValueError: 3"), ended(0)])
    assert causes(failed) == {2: Ending.FAILED, 3: Ending.DONE}
    killed = explain_failure([ended(-9), ended(1, CLOSED), ended(0)])
    assert causes(killed) == {4: Ending.KILLED, 5: Ending.LOST_CONNECTION, 6: Ending.DONE}


def test_the_last_line_of_a_progress_bar(tmp_path: Path) -> None:
    (tmp_path / "stdout.log").write_bytes(b"begin\n 10 %|#   |\r 20 %|##  |\r\n\n")
    end = read_end(0, tmp_path, 1, was_stopped=False, suspended=False)
    assert end.last_output == "20 %|##  |"


WARNED = "/a b/train.py:3: UserWarning: Error: old\n  warnings.warn('Error: old')\n"


@pytest.mark.parametrize(
    ("written", "line"),
    [
        (f"no data\n{WARNED}{WARNED}", "no data"),
        (f"no data\ntrain.py:3: FutureWarning: old\n{WARNED}", "no data"),  # without its source
        (f"{WARNED}no data\n", "no data"),
        (f"{WARNED}  no data\n  at all\n", "at all"),
        (WARNED, None),
    ],
)
def test_a_warning_is_no_error(written: str, line: str | None, tmp_path: Path) -> None:
    (tmp_path / "stderr.log").write_text(written)
    assert read_end(0, tmp_path, 1, was_stopped=False, suspended=False).last_error == line


def test_a_rank_that_ends_itself_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    (tmp_path / "stderr.log").write_text(f"loading\n{WARNED}")
    with pytest.raises(SystemExit) as raised:
        argparse.ArgumentParser("train.py").parse_args(["--no-such-flag"])
    note_exception(raised.value)
    end = read_end(0, tmp_path, 2, was_stopped=False, suspended=False)
    where = "in test_a_rank_that_ends_itself_says_where: sys.exit(2)"
    first, second, third = end.describe(names_host=False).splitlines()
    assert first == "rank 0 failed (exit code 2)"
    assert second.startswith("  it ended itself at ")
    assert second.endswith(where)
    assert third == "  last line of standard error: loading"
    error = error_of_group(GroupResult(explain_failure([end])))
    assert error is not None
    assert (error.kind, error.text) == ("SystemExit", "sys.exit(2)")
    assert error.line is not None
    assert error.line.startswith("test_group_failure.py:")


def test_a_lost_node_comes_before_its_consequences(ended) -> None:
    lost = "node1 no longer answers"
    assert explain_failure([ended(1, CLOSED)], [lost]).cause == lost
    assert explain_failure([ended(1, "ValueError: 3")], [lost]).cause.startswith("rank 1 ")
    assert str(explain_failure([], [lost])) == lost


class LinesError(Exception):
    """An exception of several lines."""


def fail_twice() -> None:
    try:
        {}[1]
    except KeyError:
        raise LinesError("two\nlines")  # noqa: B904 - with the context


def test_the_exception_is_noted_with_its_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    (tmp_path / "stderr.log").write_text("retrying\n[W] late")
    with pytest.raises(LinesError) as raised:
        fail_twice()
    note_exception(raised.value)
    end = read_end(0, tmp_path, 1, was_stopped=False, suspended=False)
    assert end.last_error == f"{__name__}.LinesError: two"
    assert end.place is not None
    assert end.place.endswith("in fail_twice")
    assert end.traceback is not None
    assert "KeyError: 1" in end.traceback
    assert end.traceback.endswith("LinesError: two\nlines")


@pytest.mark.parametrize(
    ("error", "noted"),
    [
        (SyntaxError("bad", ("a.py", 3, 1, "x =", 3, 2)), "SyntaxError: bad"),
        (SystemExit("the program's own words"), "[W] late"),
        (ValueError("x" * 10**6), f"ValueError: {'x' * (2**16 - 12)}"),
    ],
    ids=["syntax", "exit", "long"],
)
def test_the_error_is_its_first_line(
    error: BaseException, noted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    (tmp_path / "stderr.log").write_text("[W] late")
    note_exception(error)
    assert read_end(0, tmp_path, 1, was_stopped=False, suspended=False).last_error == noted


@pytest.mark.parametrize(("ranks", "reported", "more"), [(16, 16, None), (17, 16, 1), (40, 16, 24)])
def test_sixteen_ranks_are_reported_and_the_others_counted(
    ranks: int, reported: int, more: int | None
) -> None:
    failed = RankEnd(5, "node0", 1, Ending.FAILED, None, None, None, None, None, None, False, None)
    others = [replace(failed, rank=rank, ending=Ending.STOPPED) for rank in range(ranks)]
    text = str(explain_failure([*others[:5], failed, *others[6:]], names_hosts=False))
    lines = text.splitlines()
    assert lines[0].startswith("rank 5 failed")
    assert sum(line.startswith("rank ") for line in lines) == reported
    assert [line for line in lines if line.startswith("and ")] == (
        [] if more is None else [f"and {more} more ranks"]
    )


def test_only_the_first_rank_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert note_exception(MemoryError(), "in a process without a launcher") is False
    ends = []
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(folder / "error.json"))
        assert note_exception(MemoryError(), f"rank {rank} is full:\n  2 GiB") is True
        ends.append(read_end(rank, folder, 1, was_stopped=False, suspended=False))
    failure = explain_failure(ends, names_hosts=False)
    lines = str(failure).splitlines()
    assert failure.first is not None
    at = lines.index("  last error: MemoryError") + 1
    assert lines[at : at + 2] == [f"  rank {failure.first.rank} is full:", "    2 GiB"]
    assert str(failure).count("is full") == 1
