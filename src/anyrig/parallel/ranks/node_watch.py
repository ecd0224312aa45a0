"""The launchers of several machines watch each other, and tell each other how their ranks ended.

::

    node 1 ──TCP──┐                     each second: "alive"
    node 2 ──TCP──┴──> node 0           at a failure: "failing", how each rank ended, then "over"

Node 0 passes on what it hears. A launcher whose connection ends before it said "over" was killed; a
node that is silent for `SILENCE_SECONDS` is cut off, or its machine is down. torchrun's own agents
notice neither while their ranks wait for each other.

Node 0's port is open to anybody on that network: `newcomers` keeps strangers apart, and what a
launcher sends is checked before it is used. If the thread fails all the same, every node hears that
it did, and that the network did not.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist

from .newcomers import Newcomer, Newcomers, join, new_token
from .node_link import NodeLink
from .node_messages import BadMessageError, Message
from .rank_end import RankEnd
from .route import is_down

# A machine of which nothing is heard so long counts as lost. torchrun's own rendezvous takes 15 s.
SILENCE_SECONDS = 10.0
_BEAT_SECONDS = 1.0

# How long a launcher that leaves waits for the others to have read its last words.
_PARTING_SECONDS = 1.0

# Connections that wait to be accepted by node 0's system.
_BACKLOG = 128

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
            OSError: node 0 cannot be reached at the address that it gave, or does not take this
                node in.
        """
        self._node = node
        self._host = host
        self._address = address
        self._links: list[NodeLink] = []
        self._newcomers: Newcomers | None = None
        self._told: list[Message] = []  # for those that connect late
        self._outbox: list[Message] = []
        self._bug: str | None = None
        self._said: set[str] = set()
        self._closing = False
        self._lock = threading.Lock()
        store.set(f"{_KEY}/{node}", host)
        if node == 0:
            listening = socket.create_server((address or "", 0), backlog=_BACKLOG)
            self._newcomers = Newcomers(listening, new_token(), nodes)
            place = [address or host, listening.getsockname()[1], self._newcomers.token]
            store.set(f"{_KEY}/place", json.dumps(place))
        else:
            where, port, token = json.loads(store.get(f"{_KEY}/place"))
            self._links.append(NodeLink(join((where, port), token, node), node=0))
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
        """What befell the machines or launchers of other nodes, or this watch, as sentences."""
        with self._lock:
            found = [self._bug, *(node.trouble for node in self._nodes.values())]
            return tuple(trouble for trouble in found if trouble is not None)

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
                if "over" not in node.said and node.trouble is None and self._bug is None
            )

    def must_end(self) -> bool:
        """Return whether another node is failing, or lost, or this watch has failed."""
        return self._bug is not None or self._any(
            lambda node: node.trouble is not None or "failing" in node.said
        )

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
            self._tell(Message(self._node, event))

    def say_stopped(self, sentence: str) -> None:
        """Tell the others that this launcher was stopped, and by what."""
        self._tell(Message(self._node, "trouble", text=sentence))

    def say_over(self, ends: Sequence[RankEnd]) -> None:
        """Tell the others how the ranks of this node ended, as the last word."""
        for end in ends:
            self._tell(Message(self._node, "end", end=end))
        self._tell(Message(self._node, "over"))

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

    def _tell(self, message: Message) -> None:
        with self._lock:
            self._outbox.append(message)
        self._mouth.send(b".")

    # What follows runs in the thread.

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            self._report_bug(error)
        finally:
            until = time.monotonic() + _PARTING_SECONDS
            for link in self._links:
                link.finish(until)
            if self._newcomers is not None:
                self._newcomers.close()

    def _report_bug(self, error: Exception) -> None:
        """Have this node end, and the others know why; else they would blame the network."""
        text = (
            f"the launcher on {self._host} can no longer watch the other nodes, because of a bug "
            f"of anyrig and not of the network: {error!r}"
        )
        sys.stderr.write(f"anyrig: {text}\n{traceback.format_exc()}")
        with self._lock:
            self._bug = text
        for link in self._links:
            link.send(Message(self._node, "trouble", text=text))

    def _watch(self) -> None:
        began = beat = time.monotonic()
        while True:
            now = time.monotonic()
            closing = self._closing  # asked first: what was said before then lies in the outbox
            self._send_outbox()
            if closing and not any(link.has_unsent for link in self._links):
                break
            if now >= beat:
                beat = now + _BEAT_SECONDS
                for link in self._links:
                    if not link.has_unsent:
                        link.send(Message(self._node, "alive"))
                if closing:  # who takes nothing for a second gets nothing more
                    break
            for ready in self._wait_for_some(beat - now):
                self._attend(ready)
            for link in self._links:
                link.flush()
            if self._newcomers is not None:
                self._newcomers.drop_silent()
            self._look_for_silence(began)

    def _wait_for_some(self, seconds: float) -> list[object]:
        """Return what has something to read, at the latest after `seconds`."""
        with selectors.DefaultSelector() as selector:  # not select(), which ends at file 1023
            selector.register(self._ear, selectors.EVENT_READ)
            if self._newcomers is not None:
                selector.register(self._newcomers.listening, selectors.EVENT_READ)
                for newcomer in self._newcomers:
                    selector.register(newcomer, selectors.EVENT_READ)
            for link in self._links:
                writes = selectors.EVENT_WRITE if link.has_unsent else 0
                selector.register(link, selectors.EVENT_READ | writes)
            found = selector.select(seconds)
            return [key.fileobj for key, events in found if events & selectors.EVENT_READ]

    def _attend(self, ready: object) -> None:
        if ready is self._ear:
            self._ear.recv(4096)
        elif isinstance(ready, NodeLink):
            self._hear(ready)
        elif self._newcomers is not None and isinstance(ready, Newcomer):
            welcomed = self._newcomers.read(ready, {link.node for link in self._links})
            if welcomed is not None:
                link = NodeLink(*welcomed)
                self._links.append(link)
                for told in self._told:
                    if told.node != link.node:
                        link.send(told)
        elif self._newcomers is not None:
            self._newcomers.accept()

    def _send_outbox(self) -> None:
        with self._lock:
            messages, self._outbox = self._outbox, []
        for message in messages:
            self._pass_on(message)

    def _pass_on(self, message: Message) -> None:
        """Send to all but the node it is about; who connects late gets it then."""
        self._told.append(message)
        for link in self._links:
            if link.node != message.node:
                link.send(message)

    def _hear(self, link: NodeLink) -> None:
        try:
            messages = link.read()
            if self._node == 0 and any(each.node != link.node for each in messages or ()):
                raise BadMessageError("it is about another node")
        except BadMessageError as error:
            self._part_from(
                link,
                f"the launcher on {{host}} sent what is no message of a launcher: {error}. Is it "
                "the same version of anyrig?",
            )
            return
        if messages is None:
            self._part_from(link, "the launcher on {host} was killed, or its machine went down")
            return
        for message in messages:
            if message.event != "alive":
                self._note(message)
                if self._node == 0:
                    self._pass_on(message)

    def _part_from(self, link: NodeLink, sentence: str) -> None:
        self._links.remove(link)
        link.close()
        self._lose(link.node, sentence)

    def _note(self, message: Message) -> None:
        with self._lock:
            node = self._nodes.get(message.node)
            if node is None:  # this one itself, of which node 0 has heard nothing for a while
                return
            node.said.add(message.event)
            if message.event == "trouble" and node.trouble is None:
                node.trouble = message.text
            if message.end is not None:
                node.ends += (message.end,)

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
            message = Message(number, "trouble", text=sentence.format(host=node.host))
            self._note(message)
            if self._node == 0:
                self._pass_on(message)
