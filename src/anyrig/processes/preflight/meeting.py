"""The machines tell each other what they are, and try each other's ports."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta

import torch.distributed as dist

from ...errors import LaunchError
from ..route import is_host_of
from .finding import Finding, Level, bad, good
from .node import Node, read_node

_KEY = "anyrig/doctor"

# A machine that is there answers far sooner, and there may be many to try.
_CONNECT_SECONDS = 5.0


@contextmanager
def probe_port() -> Iterator[int]:
    """Listen on a free port, on every address, for the other machines to try; for a while."""
    with socket.create_server(("", 0)) as listening:
        listening.settimeout(0.2)
        done = threading.Event()

        def answer() -> None:
            while not done.is_set():
                try:
                    listening.accept()[0].close()
                except OSError:  # nobody came, or too many files are open for now
                    done.wait(0.01)

        thread = threading.Thread(target=answer, name="anyrig-doctor", daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            done.set()
            thread.join()


class Meeting:
    """Where `count` machines tell each other what they are. Every wait ends after the limit.

    With `fewest` of them a run would start, too. The place is open until `close`; ranks that are
    started from this process can meet there as well, without its being opened anew.

    Raises:
        RuntimeError: the store at that place cannot be reached, or not be opened there.
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
        """Return all machines, this one first, and how many seconds after this one each was heard.

        Raises:
            LaunchError: not all came in time, and the message names those that did; or something
                else than a machine has written at the place.
        """
        started = time.monotonic()
        place = self._store.add(f"{_KEY}/came", 1) - 1
        self._store.set(f"{_KEY}/{place}", json.dumps(asdict(node)))
        nodes: list[Node] = []
        late: list[float] = []
        for other in range(self._count):
            if not self._wait(f"{_KEY}/{other}"):
                text = (
                    f"{other} of {self._count} machines came within {self._limit_seconds:.0f} s "
                    f"({', '.join(map(str, nodes))}); run the same anyrig doctor on each of them "
                    "at the same time"
                )
                if self._fewest <= other:
                    text += (
                        f". A run would start with these; to look at them alone: --nnodes {other}"
                    )
                raise LaunchError(text)
            nodes.append(read_node(self._store.get(f"{_KEY}/{other}")))
            late.append(time.monotonic() - started)
        order = [place, *(other for other in range(self._count) if other != place)]
        return [nodes[i] for i in order], [late[i] for i in order]

    def share(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return what all machines found bad, after all have tried what they want to try.

        No machine's ports close before, and each knows then whether to go on.
        """
        lines = [f"{json.dumps(asdict(each))}\n" for each in findings if each.level is Level.BAD]
        # Not in the stubs of torch.
        self._store.append(f"{_KEY}/bad", "".join(lines))  # type: ignore[attr-defined]
        self._come_to("done", waits=True)
        heard = self._store.get(f"{_KEY}/bad").decode(errors="replace").splitlines()
        self._come_to("read", waits=self._hosts)  # or the store would end before others have read
        return [_finding(line) for line in heard]

    def close(self) -> None:
        """Leave the place, and close it if this machine hosts it and nothing else meets there."""
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
    """Connect to each of the other machines; each does the same, so all ways are tried."""
    for node in nodes[1:]:
        own = (
            "ranks connect to each other at ports of their own: open all between the machines, "
            "and have each named by an address that the others reach (--local-addr)"
        )
        named = f"on {node} name the interface that leads to the other machines, or unset it"
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
    """Return another machine's finding, or one that says that its message is malformed."""
    try:
        said = json.loads(line)
        texts = {name: said[name] for name in ("check", "text", "advice", "host")}
    except (ValueError, TypeError, LookupError, RecursionError):
        texts = {}
    if not texts or not all(isinstance(text, str | None) for text in texts.values()):
        return bad(
            "meeting place",
            "a machine reported what is no finding",
            "run the same version of anyrig on every machine, and let only these reach the place",
        )
    return Finding(level=Level.BAD, **texts)
