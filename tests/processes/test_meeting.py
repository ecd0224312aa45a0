"""The rendezvous of `anyrig doctor`, with threads as nodes, and the order of the checks."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from anyrig.devices.rig import Rig
from anyrig.errors import LaunchError
from anyrig.processes.options import RunOptions
from anyrig.processes.preflight import bandwidth, preflight
from anyrig.processes.preflight.finding import Finding, Level
from anyrig.processes.preflight.meeting import Meeting, probe_port, try_ports
from anyrig.processes.preflight.node import Node
from anyrig.processes.preflight.preflight import examine


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def make_node(number: int) -> Node:
    return Node(f"node{number}", f"10.0.0.{number}", 4711 + number)


@pytest.mark.parametrize("fewest", [1, 2])
def test_an_incomplete_meeting_names_who_came(fewest: int) -> None:
    meeting = Meeting("127.0.0.1", free_port(), fewest, 2, 0.3)
    with closing(meeting), pytest.raises(LaunchError) as raised:
        meeting.exchange(make_node(0))
    text = str(raised.value)
    assert text.startswith("only 1 of 2 nodes joined within 0 s (node0 (10.0.0.0)); run the same ")
    enough = ". A run would start with these nodes; to check only these: --nnodes 1"
    assert text.endswith(enough) is (fewest == 1), text


def test_every_node_lists_itself_first_and_gets_all_bad_findings() -> None:
    port = free_port()
    good, doubtful, bad = (Finding("ports", level, f"{level}", "mend") for level in Level)

    def come(number: int) -> tuple[list[Node], list[float], list[Finding]]:
        with closing(Meeting("127.0.0.1", port, 3, 3, 30)) as meeting:
            nodes, late = meeting.exchange(make_node(number))
            here = replace(bad, host=f"node{number}")
            return nodes, late, meeting.share([good, doubtful, here][: 2 + (number != 1)])

    with ThreadPoolExecutor(3) as pool:
        for number, (nodes, late, shared) in enumerate(pool.map(come, range(3))):
            assert nodes[0] == make_node(number)
            assert {node.host for node in nodes} == {"node0", "node1", "node2"}
            assert len(late) == 3
            assert all(0 <= seconds < 30 for seconds in late)
            assert {each.host for each in shared} == {"node0", "node2"}
            assert {(each.level, each.check, each.text) for each in shared} == {
                (Level.BAD, "ports", bad.text)
            }


def test_every_port_of_the_others_is_tried() -> None:
    with probe_port() as port:
        there = Node("node1", "127.0.0.1", port, {"127.0.0.2": "GLOO_SOCKET_IFNAME=eth7"})
        found = list(try_ports([make_node(0), there]))
        assert [finding.level for finding in found] == [Level.GOOD, Level.GOOD]
        who = "node1 (127.0.0.1)"
        assert found[0].text == f"{who} can be reached from here at 127.0.0.1:{port}"
        assert found[1].text == (
            f"{who}, for GLOO_SOCKET_IFNAME=eth7, can be reached from here at 127.0.0.2:{port}"
        )
    closed = list(try_ports([make_node(0), there]))
    assert [finding.level for finding in closed] == [Level.BAD, Level.BAD]
    assert f"{who} cannot be reached from here at 127.0.0.1:{port}: " in closed[0].text
    assert "--local-addr" in str(closed[0].advice)
    assert str(closed[1].advice).startswith(f"on {who}, set it to the interface")


@pytest.mark.parametrize(("given", "limit"), [(None, 60.0), (7.0, 7.0)])
def test_the_doctor_s_ranks_start_once_and_waits_are_bounded(
    given: float | None, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[RunOptions, float]] = []

    def answer(_: Rig, options: RunOptions, seconds: float) -> Finding:
        seen.append((options, seconds))
        return Finding("all-reduce", Level.GOOD, "well")

    monkeypatch.setattr(preflight, "check_all_reduce", answer)
    options = RunOptions(processes=2, timeout_seconds=given, max_restarts=3)
    *_, last = examine(Rig.detect(), options)
    assert last.text == "well"
    assert seen == [(replace(options, rdzv_timeout_seconds=limit, max_restarts=0), limit)]


def test_a_bad_name_ends_the_checks_before_the_meeting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad, also = Finding("address", Level.BAD, "nowhere"), Finding("host name", Level.GOOD, "x")
    monkeypatch.setattr(preflight, "check_names", lambda *_: iter([bad, also]))
    monkeypatch.setattr(preflight, "Meeting", None)
    found = list(examine(Rig.detect(), RunOptions(processes=2)))
    assert [each for each in found if each in (bad, also)] == [bad, also]
    assert all(finding.check != "all-reduce" for finding in found)


@pytest.mark.gpus(1)
def test_the_fastest_of_three_sums_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(bandwidth, "BYTES", 4096)
    monkeypatch.setattr(bandwidth, "seconds_of", lambda work, _: (work(), next(taken))[1])
    place = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))
    fastest, ranks, _ = bandwidth._measure(30.0)
    assert (fastest, ranks) == (1.0, 1)
    assert next(taken, None) is None
