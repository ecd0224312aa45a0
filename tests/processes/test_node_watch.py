"""Launchers of several nodes report how their ranks ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch.distributed as dist
from failing_group import failing_group
from two_machines import lack, two_machines

from anyrig.processes import node_watch
from anyrig.processes.newcomers import join
from anyrig.processes.node_link import NodeLink
from anyrig.processes.node_messages import Message
from anyrig.processes.node_watch import NodeWatch
from anyrig.processes.rank_end import Ending, RankEnd

PORT = 29737
KILLED = RankEnd(
    rank=4,
    host="node2",
    exit_code=-9,
    ending=Ending.KILLED,
    last_output="epoch 2",
    last_error=None,
    traceback=None,
    place=None,
    inside=None,
    waits=None,
    suspended=False,
    folder="/tmp/x",
)


# The launcher with a shorter limit of silence, for the test of a cut cable.
SILENCE_SECONDS = 2.0
ONE_RANK = ["run", "--device", "cpu", "--nproc-per-device", "1"]
IMPATIENT = f"""
import sys
from anyrig.processes import node_watch
node_watch.SILENCE_SECONDS = {SILENCE_SECONDS}
node_watch._BEAT_SECONDS = 0.2
sys.argv = ["anyrig", *sys.argv[1:]]
from anyrig.cli.app import main
main()
"""


@contextmanager
def watching(count: int) -> Iterator[list[NodeWatch]]:
    store = dist.HashStore()
    with ThreadPoolExecutor(count) as pool:
        nodes = list(
            pool.map(lambda i: NodeWatch(store, i, count, f"node{i}", "127.0.0.1"), range(count))
        )
    assert until(lambda: len(nodes[0]._links) == count - 1 and all(each._links for each in nodes))
    try:
        yield nodes
    finally:
        for node in nodes:
            node.close()


def until(fact: object) -> bool:
    ends = time.monotonic() + 30
    while not fact() and time.monotonic() < ends:
        time.sleep(0.01)
    return bool(fact())


def test_all_nodes_get_the_messages_of_one() -> None:
    with watching(3) as (hub, one, two):
        for node in (hub, one, two):
            node.report("done")
        assert until(lambda: all(node.is_done() for node in (hub, one, two)))
        two.report("failing")
        two.report_ends([KILLED])
        hub.wait_until_over(0.1)
        assert until(lambda: one.must_end() and one.ends == hub.ends == (KILLED,))
        assert until(lambda: one.silent_hosts == ("node0",))
        assert one.troubles == hub.troubles == ()


def test_a_stopped_launcher_reports_it_and_is_not_lost() -> None:
    with watching(3) as (hub, one, two):
        two.report("trouble", "the launcher on node2 was stopped (SIGINT)")
        two.report_ends([])
        assert until(lambda: one.troubles and hub.troubles)
        assert one.troubles == hub.troubles == ("the launcher on node2 was stopped (SIGINT)",)
        assert one.must_end()
        assert hub.must_end()
        assert not two.must_end()
        assert one.silent_hosts == ("node0",)  # node2 has reported its trouble


def test_nodes_follow_one_that_meets_a_new_node() -> None:
    with watching(3) as (hub, one, two):
        one.report("rejoining")
        assert until(lambda: hub.must_rejoin() and two.must_rejoin())
        assert not one.must_rejoin()
        assert not any(node.must_end() or node.is_done() for node in (hub, one, two))


def test_a_node_that_is_done_may_leave() -> None:
    with watching(3) as (hub, one, two):
        one.report("done")
        one.close()
        assert until(lambda: "done" in two._nodes[1].events and len(hub._links) == 1)
        assert not hub.is_done()  # node2 has reported nothing
        two.report("done")
        assert until(hub.is_done)
        assert not two.is_done()  # node0's ranks still run
        assert hub.troubles == two.troubles == ()
        assert not hub.must_end()


def test_last_messages_arrive_although_the_sender_has_unread_ones() -> None:
    async def talk() -> tuple[list[str], list[str]]:
        ours, theirs = socket.create_server(("127.0.0.1", 0)), socket.socket()
        theirs.connect(ours.getsockname())
        with ours:
            hearing, heard = await linked(ours.accept()[0], 1)
        speaking, last = await linked(theirs, 0)
        hearing.send(Message(0, "alive"))
        time.sleep(0.1)  # the message is unread in the sender's socket
        for _ in range(5):
            speaking.send(Message(1, "done"))
        speaking.finish()
        await asyncio.wait_for(asyncio.gather(hearing.ended.wait(), speaking.ended.wait()), 20)
        return heard, last

    assert asyncio.run(talk()) == (["done"] * 5, ["alive"])


async def linked(connected: socket.socket, node: int) -> tuple[NodeLink, list[str]]:
    heard: list[str] = []
    _, link = await asyncio.get_running_loop().create_connection(
        lambda: NodeLink(
            node, str, lambda _, message: heard.append(message.event), lambda *_: None
        ),
        sock=connected,
    )
    return link, heard


def test_closing_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_watch, "_PARTING_SECONDS", 0.2)
    store = dist.HashStore()
    store.set(f"{node_watch._KEY}/1", "node1")
    hub = NodeWatch(store, 0, 2, "node0", "127.0.0.1")
    host, port, token = json.loads(store.get(f"{node_watch._KEY}/place"))
    with join((host, port), token, 1) as halted:
        hub.report("done")
        assert until(lambda: 1 in hub._links)
        began = time.monotonic()
        hub.close()
        assert 0.2 <= time.monotonic() - began < 10
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := halted.recv(1000):
                received += piece
        assert b'"done"' in received
    hub.close()  # nothing is left to be closed


def test_a_late_node_gets_earlier_messages() -> None:
    store = dist.HashStore()
    for number in (1, 2):  # the hub knows both, and they connect one after the other
        store.set(f"{node_watch._KEY}/{number}", f"node{number}")
    with contextlib.ExitStack() as stack:
        nodes = []
        for number in range(3):
            watch = NodeWatch(store, number, 3, f"node{number}", "127.0.0.1")
            stack.callback(watch.close)
            nodes.append(watch)
            if number == 1:
                watch.report("failing")
                assert until(nodes[0].must_end)
        assert until(nodes[2].must_end)


def test_a_killed_launcher_is_reported() -> None:
    with watching(3) as (hub, one, two):
        connected = one._links[0]._transport.get_extra_info("socket")
        connected.shutdown(socket.SHUT_RDWR)  # as the kernel does for a killed process
        assert until(hub.must_end)
        assert until(two.must_end)
        assert hub.troubles == two.troubles
        assert hub.troubles[0].startswith("the launcher on node1 was killed, or its node")
        assert until(one.must_end)


def test_a_silent_launcher_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_watch, "_BEAT_SECONDS", 0.1)
    with watching(2) as (hub, one):
        monkeypatch.setattr(one._links[0], "send", lambda _: None)
        assert not hub.must_end()
        monkeypatch.setattr(node_watch, "SILENCE_SECONDS", 0.5)
        assert until(hub.must_end)
        assert "node1 no longer answers: it has sent nothing" in hub.troubles[0]


def test_the_limit_of_silence_is_ten_seconds() -> None:
    assert node_watch.SILENCE_SECONDS == 10


def test_a_stranger_is_not_admitted() -> None:
    with watching(2) as (hub, one):
        assert hub._newcomers is not None
        with socket.create_connection(("127.0.0.1", hub._newcomers.port)) as stranger:
            stranger.sendall(b'{"token": "x", "node": 1}\n{"event": "failing", "node": 1}\n')
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        assert not hub.must_end()
        assert not one.must_end()


@pytest.mark.parametrize("event", ["raise", "cut"])
def test_two_nodes_report_the_same(event: str, tmp_path: Path) -> None:
    reason = lack()
    if reason is not None:
        pytest.skip(reason)
    with two_machines() as machines, failing_group(tmp_path) as group:
        for machine in machines:
            group.start(
                "wait" if event == "cut" else event,
                command=[sys.executable, "-c", IMPATIENT, *ONE_RANK] if event == "cut" else None,
                ranks=1,
                before=machine.before(),
                flags=["--nnodes", "2", "--rdzv-endpoint", f"{machines[0].address}:{PORT}"],
            )
        group.wait_ready(2)
        if event == "cut":
            machines[1].unplug()
        assert group.wait() < SILENCE_SECONDS + 8
        for number, launcher in enumerate(group.launchers):
            other = machines[1 - number]
            line, *rest = group.message(number)
            if event == "cut":
                expected = f"error: {other.host} ({other.address}) no longer answers: it has"
                assert f"rank {number} on {machines[number].host} was stopped" in rest[0]
            else:
                expected = f"error: rank 1 on {machines[1].host} failed (exit code 1)"
                assert "on fire" in "\n".join(rest)
            assert line.startswith(expected), group.errors(number)
            assert launcher.returncode == 1
        assert group.litter() == []
