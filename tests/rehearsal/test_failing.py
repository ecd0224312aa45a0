"""`anyrig rehearse fail`: a rank fails on purpose, and the report says what follows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from anyrig.errors import ReportError
from anyrig.rehearsal.facts import StepFacts
from anyrig.rehearsal.failing.account import AttemptTimes, account_for
from anyrig.rehearsal.failing.description import describe_fault
from anyrig.rehearsal.failing.fault import Fault
from anyrig.rehearsal.failing.injection import FaultInjection
from anyrig.rehearsal.failing.rank_events import FAILED, STEPPED, RankEvent, read_events

PROGRAM = str(Path(__file__).parent / "programs" / "trains_over_ranks.py")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="links are cut by Linux's filters")


def rehearse(tmp_path: Path, *flags: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    facts, place = tmp_path / "facts.json", tmp_path / "temporary"
    place.mkdir()
    words = ["fail", "--rig", "2xT4", "--shape-only", "--json", str(facts), *flags]
    done = subprocess.run(
        [sys.executable, "-m", "anyrig", "rehearse", *words, PROGRAM],
        env={**os.environ, "TMPDIR": str(place), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    # Nothing stays behind but the output of a failed group.
    left = [one.name for one in place.glob("anyrig-*")]
    assert [name for name in left if not name.startswith("anyrig-run-")] == []
    running = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
    assert not any(str(facts) in line for line in running)
    return done, json.loads(facts.read_text())["fault"]


@contextmanager
def injected(fault: str, events: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process be rank 0 of a group, one rank of which fails, within the block."""
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    monkeypatch.setenv("RANK", "0")
    all_hooks = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
    before = [dict(hooks) for hooks in all_hooks]
    FaultInjection.from_options([fault, str(events)]).begin()
    try:
        yield
    finally:
        for hooks, kept in zip(all_hooks, before, strict=True):
            hooks.clear()
            hooks.update(kept)


@LINUX
@pytest.mark.sweep  # waits for the time limit, and starts the ranks twice
def test_a_cut_link_ends_at_the_time_limit_and_a_restarted_group_goes_on(tmp_path: Path) -> None:
    flags = ["--fault", "rank=1,step=3,link", "--timeout", "2", "--max-restarts", "1"]
    done, fault = rehearse(tmp_path, *flags)
    assert done.returncode == 0, done.stderr
    assert fault["happened"]
    assert fault["hung"]
    assert fault["limit_seconds"] == 2
    assert 2 <= fault["detected_seconds"] <= fault["ended_seconds"] <= fault["restarted_seconds"]
    assert fault["restarted_seconds"] < fault["first_step_seconds"] < 60
    assert "rank 1 lost its connections in step 3" in done.stderr
    assert "until the limit of collectives, 2 s (--timeout)" in done.stderr
    assert "first step after" in done.stderr
    for rank in range(2):
        assert done.stdout.count(f"[rank {rank}] step 2") >= 1
        assert f"[rank {rank}] step 5" in done.stdout


def test_steps_may_end_before_the_failure(tmp_path: Path) -> None:
    done, fault = rehearse(tmp_path, "--fault", "rank=1,step=3", "--steps", "2")
    assert done.returncode == 0, done.stderr
    assert not fault["happened"]


def test_a_killed_rank_ends_a_group_that_nothing_restarts(tmp_path: Path) -> None:
    done, fault = rehearse(tmp_path, "--fault", "rank=1,step=3")
    assert done.returncode == 1
    assert fault["cause"].startswith("rank 1 was killed (SIGKILL)")
    assert 0 < fault["detected_seconds"] < 5
    assert not fault["hung"]
    assert fault["restarted_seconds"] is None
    assert "rank 1 was killed in step 3" in done.stderr
    assert "nothing restarted them: add --max-restarts 1" in done.stderr
    assert "[rank 1] step 1" in done.stdout
    assert "[rank 1] step 2" not in done.stdout


@pytest.mark.virtual_only("it reads the virtual clock")
@pytest.mark.gpus(1)
def test_a_slow_rank_computes_longer_by_its_factor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anyrig.virtual.clock_reading import clock

    seconds = []
    with injected("rank=0,step=4,slow=2.5", tmp_path / "events", monkeypatch):
        weight = torch.ones(512, 512, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight])
        done = clock().done_seconds
        for _ in range(7):
            for _ in range(20):
                (weight @ weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(clock().done_seconds - done)
            done = clock().done_seconds
    usual = seconds[2]
    assert seconds[1] == pytest.approx(usual, rel=0.02)
    assert seconds[4:] == pytest.approx([2.5 * usual] * 3, rel=0.3)
    assert [event.what for event in read_events(tmp_path / "events")] == [STEPPED, FAILED]


def test_after_a_restart_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with injected("rank=0,step=2,slow=2.5", tmp_path / "events", monkeypatch):
        weight = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([weight])
        for _ in range(3):
            weight.sum().backward()
            optimizer.step()
    assert [event.what for event in read_events(tmp_path / "events")] == [STEPPED]


@LINUX
def test_a_cut_link_drops_all_data_except_for_the_stores(tmp_path: Path) -> None:
    script = tmp_path / "cut.py"
    script.write_text("""
import os, socket
from anyrig.rehearsal.failing.cut_link import cut_link

def connect():
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = socket.create_connection(server.getsockname())
        return own, server.accept()[0], server.getsockname()[1]

(one, other, _), (kept, store, port) = connect(), connect()
os.environ["MASTER_PORT"] = str(port)
assert cut_link() == 2, "both ends are in this process"
for sender, receiver in ((one, other), (kept, store)):
    sender.sendall(b"x")
    receiver.settimeout(0.3)
    try:
        print(receiver.recv(1), flush=True)
    except TimeoutError:
        print("nothing", flush=True)
os._exit(0)
""")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["nothing", "b'x'"], done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank=1", "no step is given"),
        ("step=1", "no rank is given"),
        ("rank=1,step=0", "step is '0', and must be a whole number of at least 1"),
        ("rank=-1,step=1", "rank is '-1', and must be a whole number of at least 0"),
        ("rank=1,step=1,slow", "'slow' is not part of a failure"),
        ("rank=1,step=1,kill=3", "'kill=3' is not part of a failure"),
        ("rank=1,step=1,slow=1", "slow is '1', and must be a factor above 1"),
        ("rank=1,step=1,slow=nan", "slow is 'nan', and must be a factor above 1"),
        ("rank=1,step=1,kill,link", "not by kill and link"),
        ("rank=1,rank=2,step=1", "rank is named twice"),
        ("rank=1,step=1,burn", "'burn' is not part of a failure"),
    ],
)
def test_a_text_that_names_no_failure(text: str, message: str) -> None:
    with pytest.raises(ReportError, match=message):
        Fault.parse(text)


@pytest.mark.parametrize(
    "text", ["rank=3,step=5,kill", "rank=0,step=1,slow=2.5", "rank=1,step=2,link"]
)
def test_a_failure_survives_its_text(text: str) -> None:
    assert str(Fault.parse(text)) == text
    assert str(Fault.parse(" step=5, rank=3 ")) == "rank=3,step=5,kill"


def test_a_failure_that_did_not_happen() -> None:
    found = account_for(Fault(1, 9), [], [AttemptTimes(0, None, None, False, None)], 600, [])
    assert describe_fault(found) == ["did not happen: rank 1 never took step 9"]


def test_a_restart_counts_once_every_rank_has_taken_a_step() -> None:
    attempts = [
        AttemptTimes(0, 12, 13, False, "rank 1 failed\n  at x"),
        AttemptTimes(14, None, None, False, None),
    ]
    events = [
        *(RankEvent(STEPPED, rank, 0, 5 + rank) for rank in range(2)),
        RankEvent(FAILED, 1, 0, 10),
        RankEvent(STEPPED, 0, 1, 16),
    ]
    found = account_for(Fault(1, 5), events, attempts, 600, [])
    assert (found.detected_seconds, found.ended_seconds, found.restarted_seconds) == (2, 3, 4)
    assert found.first_step_seconds is None
    assert describe_fault(found)[-1] == "no step on all ranks after that"
    found = account_for(Fault(1, 5), [*events, RankEvent(STEPPED, 1, 1, 17)], attempts, 600, [])
    assert found.first_step_seconds == 7
    assert describe_fault(found) == [
        "rank 1 was killed in step 5",
        "detected after 2.0 s",
        "cause, by the launcher: rank 1 failed",
        "restarted after 4.0 s",
        "first step after 7.0 s",
    ]


def test_a_slow_rank_is_described_by_the_steps_before_and_after() -> None:
    ends = [5, 6, 7, 9, 11, 13]
    steps = [
        StepFacts(number, number == 1, begin, end, None, 0, 0.0, ())
        for number, (begin, end) in enumerate(zip([0, *ends], ends, strict=False), 1)
    ]
    fault, events = Fault.parse("rank=0,step=3,slow=3"), [RankEvent(FAILED, 0, 0, 10)]
    assert describe_fault(account_for(fault, events, [], 600, steps)) == [
        "rank 0 computed 3 times as long from step 3 on",
        "a step of the group took 1.00 s before and 2.00 s after: 2.00 times as long",
    ]
    few = describe_fault(account_for(fault, events, [], 600, steps[:2]))
    assert "too few steps" in few[1]


EVENTS = [RankEvent(STEPPED, rank, 0, 5) for rank in range(2)] + [RankEvent(FAILED, 1, 0, 10)]


def test_ranks_that_hang_until_the_limit() -> None:
    attempt = AttemptTimes(0, 14.25, 15, True, "rank 1 timed out")
    found = account_for(Fault.parse("rank=1,step=5,link"), EVENTS, [attempt], 4, [])
    assert (found.hung, found.limit_seconds, found.restarted_seconds) == (True, 4, None)
    assert describe_fault(found) == [
        "rank 1 lost its connections in step 5",
        "the other ranks hung for 4.2 s, until the limit of collectives, 4 s (--timeout), ended "
        "them",
        "cause, by the launcher: rank 1 timed out",
        "all ranks had ended after 5.0 s; nothing restarted them: add --max-restarts 1",
    ]
    quick = account_for(Fault(1, 5), EVENTS, [replace(attempt, hung=False)], 4, [])
    assert quick.limit_seconds is None


def test_a_program_that_runs_on_is_not_detected() -> None:
    attempt = AttemptTimes(0, None, None, False, None)
    found = account_for(Fault(1, 5), EVENTS, [attempt], 4, [])
    assert describe_fault(found) == [
        "rank 1 was killed in step 5",
        "the program ran to its end all the same",
    ]


def test_the_first_step_after_a_restart_is_that_of_the_last_rank() -> None:
    attempts = [AttemptTimes(0, 12, 13, False, None), AttemptTimes(14, None, None, False, None)]
    later = [
        RankEvent(STEPPED, 0, 1, 16), RankEvent(STEPPED, 1, 1, 18),
        RankEvent(STEPPED, 0, 2, 30), RankEvent(STEPPED, 1, 2, 31),
    ]  # fmt: skip
    found = account_for(Fault(1, 5), [*EVENTS, *later], attempts, 4, [])
    assert found.first_step_seconds == 8
