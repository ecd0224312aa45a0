"""The agent of one of several nodes after failures of ranks, signals, and arrivals of nodes."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from test_node_watch import KILLED
from torch.distributed.elastic.multiprocessing import SignalException

from anyrig.processes.agent import GRACE_SECONDS, RankAgent, Step, next_step
from anyrig.processes.attempts import Attempt
from anyrig.processes.rank_end import RankEnd

HOST = socket.gethostname()


@dataclass
class Others:
    """A stand-in for `NodeWatch` with given reports of other nodes; it records its calls."""

    log: list[object]
    troubles: Sequence[str] = ()
    silent_hosts: Sequence[str] = ()
    ends: list[RankEnd] = field(default_factory=list)
    facts: Sequence[str] = ()

    def must_end(self) -> bool:
        return "must end" in self.facts

    def must_rejoin(self) -> bool:
        return "must rejoin" in self.facts

    def is_done(self) -> bool:
        return "done" in self.facts

    def report(self, event: str, text: str | None = None) -> None:
        self.log.append(text or event)

    def report_ends(self, ends: Sequence[RankEnd]) -> None:
        self.log.append(("over", list(ends)))

    def wait_until_over(self, seconds: float) -> None:
        assert 2 < seconds <= 3.0, seconds  # of the 5 s
        self.log.append("heard")


def agent_with(others: Others | None, log: list[object]) -> Any:
    agent: Any = RankAgent.__new__(RankAgent)
    agent._watch = others
    agent._guardian = SimpleNamespace(end=lambda seconds: log.append(("guardian", seconds)))
    agent._is_running = True
    agent._keeps_output = False
    agent._interrupted = None
    agent.failure = None
    agent.attempts = [Attempt(0.0)]
    agent._remaining_restarts = 2
    agent._worker_group = SimpleNamespace(workers=[], spec=SimpleNamespace(max_restarts=3))
    agent._wait_for_failures = lambda: log.append("settled")

    def stop_ranks(signum: int, *, keep_output: bool) -> list[RankEnd]:
        log.append(("stop", signum, keep_output))
        return [KILLED]

    agent._stop_ranks = stop_ranks
    return agent


def test_a_failing_node_reports_before_it_waits_for_its_ranks() -> None:
    log: list[object] = []
    other = RankEnd(**{**vars(KILLED), "rank": 7})
    agent = agent_with(Others(log, ends=[other]), log)
    agent._end_attempt()
    assert log == [
        ("guardian", GRACE_SECONDS),
        "failing",
        "settled",
        ("stop", signal.SIGTERM, True),
        ("over", [KILLED]),
        "heard",
    ]
    assert not agent._is_running
    assert [end.rank for end in agent.failure.ends] == [4, 7]
    assert agent.failure.troubles == ()
    assert agent.failure.names_hosts


def test_a_stopped_node_reports_it_first_and_keeps_no_output() -> None:
    log: list[object] = []
    sentence = f"the launcher on {HOST} was stopped (SIGINT)"
    agent = agent_with(Others(log, troubles=["gone"], silent_hosts=["node3"]), log)
    agent._end_attempt(signal.SIGINT, SignalException("", signal.SIGINT))
    assert log == [
        ("guardian", GRACE_SECONDS),
        sentence,
        "failing",
        ("stop", signal.SIGINT, False),
        ("over", [KILLED]),
        "heard",
    ]
    # Stopping this node is the cause of the other nodes' failures.
    expected = (sentence, "gone", "node3 has not reported how its ranks ended")
    assert agent.failure.troubles == expected


def test_a_stopped_launcher_keeps_output_in_a_log_folder() -> None:
    log: list[object] = []
    agent = agent_with(None, log)
    agent._keeps_output = True
    agent._end_attempt(signal.SIGTERM, SignalException("", signal.SIGTERM))
    assert log == [("guardian", GRACE_SECONDS), ("stop", signal.SIGTERM, True)]
    assert agent.failure.troubles == ("the launcher was stopped (SIGTERM)",)
    assert not agent.failure.names_hosts


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        (["node2 was killed"], ["node2 was killed"]),  # the cause of this node's trouble
        ([], [f"the launcher on {HOST} failed: OSError('lost')"]),
    ],
)
def test_reports_of_other_nodes_replace_the_loss_of_the_store(
    heard: list[str], expected: list[str]
) -> None:
    log: list[object] = []
    agent = agent_with(Others(log, troubles=heard), log)
    agent._end_attempt(signal.SIGTERM, OSError("lost"))
    assert agent.failure.troubles == tuple(expected)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_signal_while_ranks_end_kills_them_and_stops_the_launcher(stopped: bool) -> None:
    log: list[object] = []
    agent = agent_with(None, log)
    stop_ranks = agent._stop_ranks

    def interrupted(signum: int, *, keep_output: bool) -> list[RankEnd]:
        os.kill(os.getpid(), signal.SIGTERM)
        return list(stop_ranks(signum, keep_output=keep_output))

    agent._stop_ranks = interrupted
    if stopped:  # the first signal's exception is already on its way
        agent._end_attempt(signal.SIGINT, SignalException("", signal.SIGINT))
    else:
        with pytest.raises(SignalException) as raised:
            agent._end_attempt()
        assert raised.value.sigval is signal.SIGTERM
    assert log[0] == ("guardian", GRACE_SECONDS)
    assert log[-2] == ("guardian", 0)
    assert agent.failure is not None


RUNS, WELL, FAILED = None, 0, -9


@pytest.mark.parametrize(
    ("codes", "facts", "step"),
    [
        ([RUNS, FAILED], {"must_rejoin"}, Step.END),
        ([WELL, FAILED], {"others_done"}, Step.END),
        ([RUNS, WELL], {"must_end", "must_rejoin"}, Step.END),
        ([WELL, WELL], {"must_end", "others_done"}, Step.END),
        ([FAILED, RUNS], {"others_done"}, Step.END),
        ([RUNS, WELL], {"must_rejoin"}, Step.REJOIN),
        ([WELL, WELL], {"must_rejoin", "others_done"}, Step.REJOIN),
        ([RUNS, WELL], {"others_done"}, Step.GO_ON),
        ([RUNS, WELL], set(), Step.GO_ON),
        ([WELL, WELL], set(), Step.STAY),
        ([WELL, WELL], {"others_done"}, Step.LEAVE),  # as on the only node
    ],
)
def test_the_next_step_of_a_node(codes: list[int | None], facts: set[str], step: Step) -> None:
    every = ("must_end", "must_rejoin", "others_done")
    assert next_step(codes, **{fact: fact in facts for fact in every}) is step


def test_a_restart_names_the_attempt_and_a_new_node_only_ends_the_ranks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log: list[object] = []
    agent = agent_with(Others(log), log)
    agent._prepare_restart(3)
    assert log == ["rejoining", ("guardian", GRACE_SECONDS)]
    assert not agent._is_running
    assert capsys.readouterr().err == ""
    log.clear()
    agent.failure = SimpleNamespace(cause="rank 1 fell")
    agent._prepare_restart(3)  # torchrun has counted this restart
    assert log == []
    assert capsys.readouterr().err == "anyrig: attempt 1 of 4 failed, restarting: rank 1 fell\n"
