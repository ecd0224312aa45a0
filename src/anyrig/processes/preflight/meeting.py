"""The meeting of the nodes: they exchange descriptions, and try each other's ports."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import torch.distributed as dist

from ...errors import LaunchError
from ..checked_json import BadMessageError, read_json, write_json
from ..route import is_host_of
from .finding import Finding, Level, bad, good
from .node import Node, read_node

_KEY = "anyrig/doctor"

# A node that can be reached answers far sooner, and there may be many nodes to try.
_CONNECT_SECONDS = 5.0


@contextmanager
def probe_port() -> Iterator[int]:
    """Listen at a free port of every address, for the other nodes to connect to."""
    with socket.create_server(("", 0)) as listening:
        listening.settimeout(0.2)
        done = threading.Event()

        def answer() -> None:
            while not done.is_set():
                try:
                    listening.accept()[0].close()
                except OSError:  # nobody connected, or too many files are open for now
                    done.wait(0.01)

        thread = threading.Thread(target=answer, name="anyrig-doctor", daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            done.set()
            thread.join()


class Meeting:
    """A store in which `count` nodes describe themselves; waits end after `limit_seconds`.

    A run would start with `fewest` of the nodes. The store is open until `close`, and ranks that
    this process starts can meet in it.

    Raises:
        RuntimeError: the store cannot be reached, or cannot be opened.
    """

    def __init__(self, host: str, port: int, fewest: int, count: int, limit_seconds: float) -> None:
        self._fewest = fewest
        self._count = count
        self._ends = time.monotonic() + limit_seconds
        self._limit_seconds = limit_seconds
        self._hosts = is_host_of(host)
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
            is_master=self._hosts,
            timeout=timedelta(seconds=limit_seconds),
            wait_for_workers=False,
            multi_tenant=True,
        )

    def exchange(self, node: Node) -> tuple[list[Node], list[float]]:
        """Return all nodes, this one first, and after how many seconds each description came.

        Raises:
            LaunchError: not all nodes came in time, or a description is malformed.
        """
        started = time.monotonic()
        place = self._store.add(f"{_KEY}/came", 1) - 1
        self._store.set(f"{_KEY}/{place}", write_json(node))
        nodes: list[Node] = []
        late: list[float] = []
        for other in range(self._count):
            if not self._wait(f"{_KEY}/{other}"):
                enough = (
                    f". A run would start with these; to check them alone: --nnodes {other}"
                    if self._fewest <= other
                    else ""
                )
                raise LaunchError(
                    f"{other} of {self._count} nodes came within {self._limit_seconds:.0f} s "
                    f"({', '.join(map(str, nodes))}); run the same anyrig doctor on each node at "
                    f"the same time{enough}"
                )
            nodes.append(read_node(self._store.get(f"{_KEY}/{other}")))
            late.append(time.monotonic() - started)
        order = [place, *(other for other in range(self._count) if other != place)]
        return [nodes[i] for i in order], [late[i] for i in order]

    def share(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the bad findings of all nodes, once every node has called this.

        No node closes its port before, and each node then knows whether to go on.
        """
        lines = [f"{write_json(each)}\n" for each in findings if each.level is Level.BAD]
        self._store.append(f"{_KEY}/bad", "".join(lines))  # type: ignore[attr-defined]
        self._come_to("done", waits=True)
        heard = self._store.get(f"{_KEY}/bad").decode(errors="replace").splitlines()
        self._come_to("read", waits=self._hosts)  # keep the store open until all nodes have read
        return [_finding(line) for line in heard]

    def close(self) -> None:
        """Leave the store; if this node hosts it and no rank uses it, it closes."""
        del self._store

    def _come_to(self, point: str, waits: bool) -> None:
        if self._store.add(f"{_KEY}/{point}", 1) == self._count:
            self._store.set(f"{_KEY}/all {point}", "")
        if waits:
            self._wait(f"{_KEY}/all {point}")

    def _wait(self, key: str) -> bool:
        left = max(0.1, self._ends - time.monotonic())
        try:
            self._store.wait([key], timedelta(seconds=left))
        except dist.DistStoreError:
            return False
        return True


def try_ports(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Connect to each node but the first, this one, at each address that its ranks use."""
    for node in nodes[1:]:
        own = (
            "ranks connect to each other at ports of their own: open all ports between the nodes, "
            "and give each node an address that the others reach (--local-addr)"
        )
        named = f"on {node} set it to the interface that leads to the other nodes, or unset it"
        ways = [(str(node), node.address, own)]
        ways += [(f"{node}, for {why},", each, named) for each, why in node.interfaces.items()]
        for who, address, advice in ways:
            where = f"{address}:{node.probe_port}"
            try:
                socket.create_connection((address, node.probe_port), _CONNECT_SECONDS).close()
            except OSError as error:
                yield bad("ports", f"{who} cannot be reached from here at {where}: {error}", advice)
            else:
                yield good("ports", f"{who} can be reached from here at {where}")


def _finding(line: str) -> Finding:
    """Return another node's finding, or a bad finding if `line` is malformed."""
    try:
        return replace(read_json(Finding, line), level=Level.BAD)
    except BadMessageError:
        return bad(
            "meeting place",
            "a node reported a malformed finding",
            "run the same version of anyrig on every node, and keep others from the meeting place",
        )
