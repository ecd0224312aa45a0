"""The doctor's rendezvous: the nodes exchange descriptions, and try each other's ports."""

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

# Short, because there may be many nodes to try. A reachable node answers much earlier.
_CONNECT_SECONDS = 5.0


@contextmanager
def probe_port() -> Iterator[int]:
    """Listen on a free port of every address, to which the other nodes connect."""
    with socket.create_server(("", 0)) as listening:
        listening.settimeout(0.2)
        done = threading.Event()

        def answer() -> None:
            while not done.is_set():
                try:
                    listening.accept()[0].close()
                except OSError:  # no connection came, or too many files are open
                    done.wait(0.01)

        thread = threading.Thread(target=answer, name="anyrig-doctor", daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            done.set()
            thread.join()


class Meeting:
    """A store in which nodes describe themselves.

    The store is open until `close`, and ranks that this process starts can use it.

    Args:
        host: the node that hosts the store.
        port: its port on that node.
        fewest: the number of nodes with which a run could start.
        count: the number of nodes to wait for.
        limit_seconds: how long to wait, in total.

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
        """Return all nodes, this node first, and the seconds until each description arrived.

        Raises:
            LaunchError: not all nodes joined in time, or a description is malformed.
        """
        started = time.monotonic()
        own = self._store.add(f"{_KEY}/joined", 1) - 1
        self._store.set(f"{_KEY}/{own}", write_json(node))
        nodes: list[Node] = []
        late: list[float] = []
        for other in range(self._count):
            if not self._wait(f"{_KEY}/{other}"):
                enough = (
                    f". A run would start with these nodes; to check only these: --nnodes {other}"
                    if self._fewest <= other
                    else ""
                )
                raise LaunchError(
                    f"only {other} of {self._count} nodes joined within {self._limit_seconds:.0f} "
                    f"s ({', '.join(map(str, nodes))}); run the same anyrig doctor on every node "
                    f"at the same time{enough}"
                )
            nodes.append(read_node(self._store.get(f"{_KEY}/{other}")))
            late.append(time.monotonic() - started)
        order = [own, *(other for other in range(self._count) if other != own)]
        return [nodes[i] for i in order], [late[i] for i in order]

    def share(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the bad findings of all nodes, once every node has called this method.

        The wait keeps the ports of all nodes open until every node has tried them. All nodes get
        the same result, so all of them either continue or stop.
        """
        bad_ones = [finding for finding in findings if finding.level is Level.BAD]
        lines = [f"{write_json(finding)}\n" for finding in bad_ones]
        self._store.append(f"{_KEY}/bad", "".join(lines))  # type: ignore[attr-defined]
        self._reach("done", waits=True)
        received = self._store.get(f"{_KEY}/bad").decode(errors="replace").splitlines()
        self._reach("read", waits=self._hosts)  # keep the store open until all nodes have read
        return [_finding(line) for line in received]

    def close(self) -> None:
        """Release the store. If this node hosts the store and no rank uses it, the store closes."""
        del self._store

    def _reach(self, point: str, waits: bool) -> None:
        """Count this node at `point`; with `waits`, wait until all nodes have reached it."""
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
    """Try to connect to every other node, at each address that its ranks use.

    The first node is this node.
    """
    for node in nodes[1:]:
        open_ports = (
            "ranks connect to each other at arbitrary ports: open all ports between the nodes, and "
            "give each node an address that the other nodes can reach (--local-addr)"
        )
        set_variable = (
            f"on {node}, set it to the interface that leads to the other nodes, or unset it"
        )
        ways = [(str(node), node.address, open_ports)]
        ways += [
            (f"{node}, for {variable},", address, set_variable)
            for address, variable in node.interfaces.items()
        ]
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
            "rendezvous",
            "a node reported a malformed finding",
            "run the same version of anyrig on every node, and let no other program connect to the "
            "rendezvous endpoint",
        )
