"""The launchers of several machines watch each other, and tell each other how their ranks ended.

::

    node 1 ──TCP──┐                     each second: "alive"
    node 2 ──TCP──┴──> node 0           at a failure: "failing", then "over" and how each rank ended

Node 0 passes on what it hears. Whose connection ends before it said "over" was killed; of whom
nothing is heard for `SILENCE_SECONDS` is cut off, or its machine is down. torchrun's own agents
notice neither while their ranks wait for each other.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist

from .node_link import NodeLink
from .rank_end import Ending, RankEnd
from .route import is_down

# A machine of which nothing is heard so long counts as lost. torchrun's own rendezvous takes 15 s.
SILENCE_SECONDS = 10.0
_BEAT_SECONDS = 1.0

_KEY = "anyrig/node watch"


@dataclass
class _Node:
    """What is known of another node.

    Attributes:
        host: its name, for people.
        trouble: what befell it, as a sentence, or None.
        said: the events that it told of.
        ends: how its ranks ended, once it is over.
    """

    host: str
    trouble: str | None
    said: set[str]
    ends: tuple[RankEnd, ...] = ()


class NodeWatch:
    """What this node tells the others and hears of them, in one attempt."""

    def __init__(
        self,
        store: dist.Store,  # type: ignore[name-defined]
        node: int,
        nodes: int,
        host: str,
        address: str | None,
    ) -> None:
        """Connect this node to node 0, or listen for the others if it is that one.

        Args:
            store: one that all nodes of this attempt share, and no other attempt.
            node: which of them this is.
            nodes: how many there are.
            host: this node's name, for people.
            address: by which the others reach it; None if only its name is known.

        Raises:
            OSError: node 0 cannot be reached at the address that it gave.
        """
        self._node = node
        self._address = address
        self._links: list[NodeLink] = []
        self._listening: socket.socket | None = None
        self._told: list[dict[str, Any]] = []  # for those that connect late
        self._outbox: list[dict[str, Any]] = []
        self._said: set[str] = set()
        self._closing = False
        self._lock = threading.Lock()
        store.set(f"{_KEY}/{node}", host)
        if node == 0:
            self._token = secrets.token_hex(16)
            self._listening = socket.create_server((address or "", 0), backlog=nodes)
            port = self._listening.getsockname()[1]
            store.set(f"{_KEY}/place", json.dumps([address or host, port, self._token]))
        else:
            where, port, token = json.loads(store.get(f"{_KEY}/place"))
            link = NodeLink(socket.create_connection((where, port), SILENCE_SECONDS), node=0)
            link.send({"token": token, "node": node})
            self._links.append(link)
        self._nodes = {
            other: _Node(store.get(f"{_KEY}/{other}").decode(), None, set())
            for other in range(nodes)
            if other != node
        }
        self._ear, self._mouth = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="anyrig-node-watch", daemon=True)
        self._thread.start()

    @property
    def troubles(self) -> tuple[str, ...]:
        """What befell the machines or launchers of other nodes, as sentences."""
        with self._lock:
            return tuple(node.trouble for node in self._nodes.values() if node.trouble is not None)

    @property
    def ends(self) -> tuple[RankEnd, ...]:
        """How the ranks of the other nodes ended, as far as these have said."""
        with self._lock:
            return tuple(end for node in self._nodes.values() for end in node.ends)

    @property
    def unheard(self) -> tuple[str, ...]:
        """The hosts that have not said how their ranks ended, for no known reason."""
        with self._lock:
            return tuple(
                node.host
                for node in self._nodes.values()
                if "over" not in node.said and node.trouble is None
            )

    def must_end(self) -> bool:
        """Return whether another node is failing, or lost."""
        return self._any(lambda node: node.trouble is not None or "failing" in node.said)

    def must_meet_again(self) -> bool:
        """Return whether another node has gone to meet one that came late."""
        return self._any(lambda node: "meeting again" in node.said)

    def is_done(self) -> bool:
        """Return whether the ranks of all other nodes have ended well."""
        return not self._any(lambda node: "done" not in node.said)

    def say(self, event: str) -> None:
        """Tell the others, once: "failing", "done" or "meeting again"."""
        if event not in self._said:
            self._said.add(event)
            self._tell({"event": event})

    def say_stopped(self, sentence: str) -> None:
        """Tell the others that this launcher was stopped, and by what."""
        self._tell({"event": "trouble", "text": sentence})

    def say_over(self, ends: Sequence[RankEnd]) -> None:
        """Tell the others how the ranks of this node ended, as the last word."""
        told = [asdict(end) | {"ending": end.ending.name} for end in ends]
        self._tell({"event": "over", "ends": told})

    def wait_until_over(self, seconds: float) -> None:
        """Wait until every other node has said how its ranks ended, or is lost."""
        ends = time.monotonic() + seconds
        while self.unheard and time.monotonic() < ends:
            time.sleep(0.02)

    def close(self) -> None:
        """Send what there is still to send, and close the connections."""
        self._closing = True
        self._mouth.send(b".")
        self._thread.join()
        self._ear.close()
        self._mouth.close()

    def _any(self, fact: Callable[[_Node], bool]) -> bool:
        with self._lock:
            return any(fact(node) for node in self._nodes.values())

    def _tell(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._outbox.append(message | {"node": self._node})
        self._mouth.send(b".")

    # What follows runs in the thread.

    def _run(self) -> None:
        began = beat = time.monotonic()
        while True:
            now = time.monotonic()
            self._send_outbox()
            if self._closing and not any(link.has_unsent for link in self._links):
                break
            if now >= beat:
                beat = now + _BEAT_SECONDS
                for each_link in self._links:
                    each_link.send({"event": "alive"})
                if self._closing:  # who takes nothing for a second gets nothing more
                    break
            sockets = [self._ear, *([self._listening] if self._listening else [])]
            writable = [link for link in self._links if link.has_unsent]
            watched: list[socket.socket | NodeLink] = [*sockets, *self._links]
            ready, _, _ = select.select(watched, writable, [], beat - now)
            for waiting in writable:
                waiting.flush()
            for each in ready:
                if each is self._ear:
                    self._ear.recv(4096)
                elif isinstance(each, NodeLink):
                    self._hear(each)
                else:
                    with contextlib.suppress(OSError):
                        self._links.append(NodeLink(each.accept()[0]))
            self._look_for_silence(began)
        for link in self._links:
            link.close()
        if self._listening is not None:
            self._listening.close()

    def _send_outbox(self) -> None:
        with self._lock:
            messages, self._outbox = self._outbox, []
        for message in messages:
            self._pass_on(message)

    def _pass_on(self, message: dict[str, Any]) -> None:
        """Send to all but the node it is about; who connects late gets it then."""
        self._told.append(message)
        for link in self._links:
            if link.node is not None and link.node != message["node"]:
                link.send(message)

    def _hear(self, link: NodeLink) -> None:
        messages = link.read()
        if messages is None:
            self._links.remove(link)
            link.close()
            if link.node is not None:
                self._lose(link.node, "the launcher on {host} was killed, or its machine went down")
            return
        for message in messages:
            if link.node is None:
                if not self._welcome(link, message):
                    return
            elif message["event"] != "alive":
                self._note(message["node"], message["event"], message)
                if self._node == 0:
                    self._pass_on(message)

    def _welcome(self, link: NodeLink, message: dict[str, Any]) -> bool:
        if not secrets.compare_digest(str(message.get("token")), self._token):
            self._links.remove(link)
            link.close()
            return False
        link.node = int(message["node"])
        for told in self._told:
            link.send(told)
        return True

    def _note(self, number: int, event: str, message: dict[str, Any]) -> None:
        with self._lock:
            node = self._nodes.get(number)
            if node is None:  # this one itself, of which node 0 has heard nothing for a while
                return
            node.said.add(event)
            if event == "trouble" and node.trouble is None:
                node.trouble = message["text"]
            if event == "over":
                node.ends = tuple(
                    RankEnd(**{**end, "ending": Ending[end["ending"]]}) for end in message["ends"]
                )

    def _look_for_silence(self, began: float) -> None:
        last = time.monotonic() - SILENCE_SECONDS
        watched = self._nodes if self._node == 0 else [0]
        heard = {link.node: link.heard for link in self._links}
        for number in watched:
            if heard.get(number, began) < last:
                here = (
                    "; the network of this machine is down"
                    if self._address is not None and is_down(self._address)
                    else ""
                )
                self._lose(
                    number,
                    f"{{host}} no longer answers: nothing was heard of it for {SILENCE_SECONDS:.0f}"
                    f" s. The network between is cut, or that machine is down or halted{here}",
                )

    def _lose(self, number: int, sentence: str) -> None:
        node = self._nodes[number]
        if node.trouble is None and not node.said & {"over", "done"}:
            message = {"event": "trouble", "node": number, "text": sentence.format(host=node.host)}
            self._note(number, "trouble", message)
            if self._node == 0:
                self._pass_on(message)
