"""Strangers at a port of a job cannot end the job or fill its memory, and are reported."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import socket
import string
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist
from failing_group import RUN, failing_group
from hostile_senders import attack, messages
from test_node_watch import KILLED, until

from anyrig.errors import LaunchError
from anyrig.processes import newcomers
from anyrig.processes.checked_json import BadMessageError
from anyrig.processes.node_link import NodeLink
from anyrig.processes.node_messages import MOST_LINE_BYTES, Message, read_message
from anyrig.processes.node_watch import NodeWatch
from anyrig.processes.preflight.finding import Level
from anyrig.processes.preflight.meeting import _finding, probe_port
from anyrig.processes.preflight.node import Node, compare, read_node

# Far less than the bytes sent, and than a list of all connections would take.
ALLOWED_BYTES = 8 * 2**20

WAITS_FOR_A_FILE = """
import os, sys, time

import torch.distributed as dist
dist.init_process_group("gloo")
open(f"{sys.argv[-1]}.{dist.get_rank()}", "w").close()
while not os.path.exists(sys.argv[-1]):
    time.sleep(0.05)
dist.barrier()
print("done", flush=True)
dist.destroy_process_group()
"""


@contextmanager
def watching(count: int) -> Iterator[tuple[list[NodeWatch], tuple[str, int]]]:
    store = dist.HashStore()
    with ThreadPoolExecutor(count) as pool:
        nodes = list(
            pool.map(lambda i: NodeWatch(store, i, count, f"node{i}", "127.0.0.1"), range(count))
        )
    assert until(lambda: len(nodes[0]._links) == count - 1 and all(each._links for each in nodes))
    host, port, _ = json.loads(store.get("anyrig/node watch/place"))
    try:
        yield nodes, (host, port)
    finally:
        for node in nodes:
            node.close()


def test_nodes_stay_connected_through_ten_thousand_messages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with watching(3) as (nodes, port):
        attack(port, 400)
        before = psutil.Process().memory_info().rss
        attack(port)
        assert psutil.Process().memory_info().rss - before < ALLOWED_BYTES
        hub = nodes[0]._newcomers
        assert hub is not None
        assert len(hub.waiting) <= newcomers._MOST_WAITING
        for node in nodes:
            assert not node.must_end(), node.troubles
            node.report("done")
        assert until(lambda: all(node.is_done() for node in nodes))
        assert [node.troubles for node in nodes] == [(), (), ()]
    reports = capsys.readouterr().err.splitlines()
    assert len(reports) == 1, reports  # each sender is reported once
    assert reports[0].startswith(f"anyrig: dropped a connection from 127.0.0.1 to port {port[1]}")
    assert reports[0].endswith("The job continues")


def test_a_node_joins_while_strangers_flood_the_port() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(3) as pool:
        early = [pool.submit(NodeWatch, store, i, 3, f"node{i}", "127.0.0.1") for i in range(2)]
        host, port, _ = json.loads(store.get("anyrig/node watch/place"))
        flood = pool.submit(attack, (host, port))
        store.wait(["anyrig/node watch/1"])
        late = NodeWatch(store, 2, 3, "node2", "127.0.0.1")
        flood.result()
        nodes = [*(each.result() for each in early), late]
    late.report("failing")
    assert until(lambda: all(node.must_end() for node in nodes[:2]))
    assert [node.troubles for node in nodes] == [(), (), ()]
    for node in nodes:
        node.close()


@pytest.mark.parametrize("turns", range(5))
def test_a_connection_that_comes_at_the_end_is_closed(turns: int) -> None:
    async def end() -> None:
        hub = newcomers.Newcomers("127.0.0.1", 2)
        admitting = asyncio.ensure_future(hub.admit(lambda connected, node: asyncio.sleep(0)))
        await asyncio.sleep(0)  # now it waits for a connection
        clients = [socket.create_connection(("127.0.0.1", hub.port), 20) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        admitting.cancel()
        await asyncio.gather(admitting, return_exceptions=True)
        await hub.close()
        for client in clients:
            with contextlib.suppress(ConnectionError):
                assert client.recv(1) == b""
            client.close()

    asyncio.run(end())
    gc.collect()  # a socket that is not closed warns


def test_a_silent_stranger_is_dropped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(newcomers, "_GREETING_SECONDS", 0.2)
    with (
        watching(2) as ((hub, one), port),
        socket.create_connection(port, 20) as silent,
        socket.create_connection(port, 20) as slow,
    ):
        slow.sendall(b"0")
        assert silent.recv(1) == slow.recv(1) == b""
        assert not hub.must_end()
        assert not one.must_end()
    assert "no greeting within 0 s" in capsys.readouterr().err


def test_only_the_token_admits_a_newcomer() -> None:
    store = dist.HashStore()
    store.set("anyrig/node watch/1", "node1")  # it is about to connect
    hub = NodeWatch(store, 0, 2, "node0", "127.0.0.1")
    host, port, token = json.loads(store.get("anyrig/node watch/place"))
    for first in (f"{'0' * 32}", f"{token[:-1]}~", f"~{token[1:]}"):
        with socket.create_connection((host, port), 20) as stranger:
            stranger.sendall(f"{first} 00000001\n".encode())
            assert stranger.recv(8) == b""
    node = NodeWatch(store, 1, 2, "node1", "127.0.0.1")
    node.report("failing")
    assert until(hub.must_end)
    assert hub.troubles == ()
    for each in (hub, node):
        each.close()


def test_the_oldest_silent_strangers_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newcomers, "_GREETING_SECONDS", 600)
    with watching(2) as ((hub, _), port), contextlib.ExitStack() as stack:
        assert hub._newcomers is not None
        silent = [
            stack.enter_context(socket.create_connection(port, 20))
            for _ in range(newcomers._MOST_WAITING + 10)
        ]
        for oldest in silent[:10]:
            assert oldest.recv(1) == b""
        assert len(hub._newcomers.waiting) <= newcomers._MOST_WAITING


def test_an_endless_line_is_not_kept() -> None:
    ended: list[BadMessageError | None] = []

    async def send_on() -> int:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(
            lambda: NodeLink(1, str, lambda *_: None, lambda _, error: ended.append(error)),
            sock=ours,
        )
        most = 0
        with theirs, contextlib.suppress(ConnectionError):
            for _ in range(2 * MOST_LINE_BYTES // 2**16):
                await loop.sock_sendall(theirs, b"x" * 2**16)
                most = max(most, len(link._unread))
        await asyncio.wait_for(link.ended.wait(), 20)
        return most

    assert MOST_LINE_BYTES / 2 < asyncio.run(send_on()) <= MOST_LINE_BYTES
    (error,) = ended
    assert str(error) == f"it has more than {MOST_LINE_BYTES} bytes"


def test_the_token_must_be_complete_and_a_node_new() -> None:
    with watching(2) as ((hub, _), port):
        token = hub._newcomers.token if hub._newcomers is not None else ""
        for greeting in (
            f"{token} 00000001\n",  # already connected
            f"{token} 00000000\n",  # node 0 itself
            f"{token} 00000002\n",
            f"{token} -0000001\n",
            f"{token}000000001\n",
            f"{token[:-1]}~ 00000001\n",
            f"{'0' * 32} 00000001\n",
        ):
            with socket.create_connection(port, 20) as stranger:
                stranger.sendall(greeting.encode())
                assert stranger.recv(8) == b"", greeting
        assert not hub.must_end(), hub.troubles


def test_a_launcher_that_sends_a_malformed_message_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for line in (b"1", b"[" * 200_000, Message(0, "done").line()[:-1]):
        with watching(2) as ((hub, one), _):
            one._loop.call_soon_threadsafe(one._links[0]._transport.write, line + b"\n")
            assert until(hub.must_end)
            (trouble,) = hub.troubles
            assert trouble.startswith("the launcher on node1 sent a malformed message"), trouble
            assert "network" not in trouble


def test_a_failure_of_the_watch_is_reported_as_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with watching(3) as ((hub, one, two), _):
        monkeypatch.setattr(hub, "_look_for_silence", lambda _: 1 // 0)
        assert until(lambda: hub.must_end() and one.must_end() and two.must_end())
        for node in (hub, one, two):
            assert until(lambda node=node: node.troubles)
            assert (
                "a bug in anyrig, not a failure of the network: ZeroDivisionError"
                in node.troubles[0]
            )
        assert hub.silent_hosts == ()
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_reading_a_message_raises_only_its_own_error() -> None:
    chance = random.Random(1)
    end = Message(1, "end", end=KILLED)
    assert read_message(end.line()[:-1]) == end
    whole = json.loads(end.line())
    odd = [None, True, -1, 2**70, 1.5, "", "é\ud800", [], {}, [[]], {"ending": 1}]
    hostile = list(messages(4000))
    for _ in range(4000):  # one value of a message is another one
        data = json.loads(end.line())
        where = chance.choice([data, data["end"]])
        where[chance.choice([*where, *string.ascii_lowercase])] = chance.choice(odd)
        hostile.append(json.dumps(data).encode())
    for _ in range(2000):  # one byte of it is another one
        line = bytearray(end.line()[:-1])
        line[chance.randrange(len(line))] = chance.randrange(256)
        hostile.append(bytes(line))
    accepted = 0
    for line in hostile:
        try:
            message = read_message(line)
        except BadMessageError:
            continue
        accepted += 1
        assert isinstance(message.line(), bytes)
        assert asdict(message).keys() == whole.keys()
    assert accepted < len(hostile) / 2


def test_the_doctor_s_port_survives_strangers() -> None:
    with probe_port() as port:
        attack(("127.0.0.1", port), 400)
        before = psutil.Process().memory_info().rss
        attack(("127.0.0.1", port))
        assert psutil.Process().memory_info().rss - before < ALLOWED_BYTES
        socket.create_connection(("127.0.0.1", port), 10).close()  # still accepts


def test_the_doctor_checks_what_it_reads() -> None:
    here = Node("node0", "127.0.0.1", 4711, {"10.0.0.1": "GLOO"}, {"torch": "2"}, ("cpu",), 1.0)
    assert read_node(json.dumps(asdict(here)).encode()) == here
    odd = [None, True, 2**70, "", [1], {"a": 1}, {}, "0.0.0.0"]
    texts = list(messages(2000))
    for name in asdict(here):
        texts += [json.dumps(asdict(here) | {name: value}).encode() for value in odd]
        texts.append(json.dumps({k: v for k, v in asdict(here).items() if k != name}).encode())
    refused = 0
    for text in texts:
        try:
            node = read_node(text)
        except LaunchError:
            refused += 1
        else:
            str(node), list(compare([here, node], [0.0, 0.0]))
    assert refused > 2000
    for text in messages(2000):
        finding = _finding(text.decode(errors="replace"))
        assert finding.level is Level.BAD
        assert finding.text == "a node reported a malformed finding"


def test_a_job_of_two_launchers_survives_strangers(tmp_path: Path) -> None:
    """Attack all ports: those of PyTorch's stores in the first launcher, and the launchers' own."""
    script, stop = tmp_path / "wait.py", tmp_path / "stop"
    script.write_text(WAITS_FOR_A_FILE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    command = [*RUN, "--device", "cpu", "--nnodes", "2", "--rdzv-endpoint", place, str(script)]
    with failing_group(tmp_path) as group:
        for _ in range(2):
            group.start(str(stop), command=command)
        ends = time.monotonic() + 90
        while not all(Path(f"{stop}.{rank}").exists() for rank in range(2)):
            assert time.monotonic() < ends, group.errors(0) + group.errors(1)
            time.sleep(0.05)
        ports = {
            (str(connection.laddr.ip).removeprefix("::ffff:"), connection.laddr.port)
            for launcher in group.launchers
            for connection in psutil.Process(launcher.pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert len(ports) == 3, ports
        for host, port in sorted(ports):
            attack(("127.0.0.1" if host in ("::", "0.0.0.0") else host, port), 400)
        stop.touch()
        group.wait()
        errors = group.errors(0) + group.errors(1)
        assert [launcher.returncode for launcher in group.launchers] == [0, 0], errors
        assert errors.count("anyrig: dropped a connection from 127.0.0.1") == 1, errors
