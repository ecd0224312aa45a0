"""The launchers of several nodes watch each other, and exchange how their ranks ended.

::

    node 1 ──TCP──┐                     each second: "alive"
    node 2 ──TCP──┴──> node 0           at a failure: "failing", how each rank ended, then "over"

Node 0 forwards the messages that it receives. A launcher whose connection ends before "over" was
killed. A node that is silent for `SILENCE_SECONDS` is down or cut off. torchrun's agents notice
neither while their ranks wait for each other: elastic's keep-alive only makes room for another node
in the next rendezvous.

Any process on the network can connect to node 0's port. `newcomers` admits only launchers of this
job, and `node_messages` checks their messages. If the watch itself fails, every node reports that.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from .checked_json import BadMessageError
from .newcomers import Newcomers, join
from .node_link import NodeLink
from .node_messages import Message
from .rank_end import RankEnd
from .route import is_down

# A node that is silent for this long is lost. torchrun's rendezvous waits 15 s.
SILENCE_SECONDS = 10.0
_BEAT_SECONDS = 1.0

# How long an ending launcher waits for the other launchers to read its last messages.
_PARTING_SECONDS = 1.0

_KEY = "anyrig/node watch"


@dataclass
class _Node:
    """Another node.

    Attributes:
        host: the node's name in messages to the user.
        trouble: the node's failure, as a sentence, or None.
        events: the events that the node has reported.
        ends: how the node's ranks ended.
    """

    host: str
    trouble: str | None
    events: set[str]
    ends: tuple[RankEnd, ...] = ()


class NodeWatch:
    """The exchange of messages between this node and the others in one attempt."""

    def __init__(
        self,
        store: dist.Store,  # type: ignore[name-defined]
        node: int,
        nodes: int,
        host: str,
        address: str | None,
    ) -> None:
        """Connect this node to node 0; node 0 listens for the other nodes instead.

        The nodes of this attempt share `store`. Other nodes reach this node at `address`, or by its
        `host` name if `address` is None.

        Raises:
            OSError: node 0 cannot be reached at its address, or does not admit this node.
        """
        self._node = node
        self._host = host
        self._address = address
        self._links: dict[int, NodeLink] = {}
        self._newcomers: Newcomers | None = None
        self._sent: list[Message] = []  # repeated to nodes that connect later
        self._bug: str | None = None
        self._events: set[str] = set()  # the events that this node has sent
        store.set(f"{_KEY}/{node}", host)
        hub: socket.socket | None = None
        if node == 0:
            self._newcomers = Newcomers(address, nodes)
            place = [address or host, self._newcomers.port, self._newcomers.token]
            store.set(f"{_KEY}/place", json.dumps(place))
        else:
            where, port, token = json.loads(store.get(f"{_KEY}/place"))
            hub = join((where, port), token, node)
        self._nodes = {
            other: _Node(store.get(f"{_KEY}/{other}").decode(), None, set())
            for other in range(nodes)
            if other != node
        }
        # The methods from `_watch` on run in the thread; the methods above read their results.
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete,
            args=(self._watch(hub),),
            name="anyrig-node-watch",
            daemon=True,
        )
        self._thread.start()

    @property
    def troubles(self) -> tuple[str, ...]:
        """The failures of other nodes, of their launchers and of this watch, as sentences."""
        found = [self._bug, *(node.trouble for node in self._nodes.values())]
        return tuple(trouble for trouble in found if trouble is not None)

    @property
    def ends(self) -> tuple[RankEnd, ...]:
        """How the ranks of the other nodes ended, as far as reported."""
        return tuple(end for node in self._nodes.values() for end in node.ends)

    @property
    def silent_hosts(self) -> tuple[str, ...]:
        """The hosts of nodes that have reported neither how their ranks ended nor a failure."""
        return tuple(
            node.host
            for node in self._nodes.values()
            if "over" not in node.events and node.trouble is None and self._bug is None
        )

    def must_end(self) -> bool:
        """Return whether another node has failed or is lost, or this watch has failed."""
        return bool(self.troubles) or self._any(lambda node: "failing" in node.events)

    def must_rejoin(self) -> bool:
        """Return whether another node restarts its ranks to admit a new node."""
        return self._any(lambda node: "rejoining" in node.events)

    def is_done(self) -> bool:
        """Return whether the ranks of all other nodes have succeeded."""
        return not self._any(lambda node: "done" not in node.events)

    def report(self, event: str, text: str | None = None) -> None:
        """Send an event of `node_messages`, at most once per attempt; "trouble" has a text."""
        if event not in self._events:
            self._events.add(event)
            self._send(Message(self._node, event, text))

    def report_ends(self, ends: Sequence[RankEnd]) -> None:
        """Send how the ranks of this node ended, then "over"."""
        for end in ends:
            self._send(Message(self._node, "end", end=end))
        self._send(Message(self._node, "over"))

    def wait_until_over(self, seconds: float) -> None:
        """Wait at most `seconds` until every other node has sent "over" or is lost."""
        ends = time.monotonic() + seconds
        while self.silent_hosts and time.monotonic() < ends:
            time.sleep(0.02)

    def close(self) -> None:
        """Send the last messages, close the connections, and end the thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
            self._loop.close()

    def _any(self, predicate: Callable[[_Node], bool]) -> bool:
        return any(predicate(node) for node in self._nodes.values())

    def _send(self, message: Message) -> None:
        self._loop.call_soon_threadsafe(self._forward, message)

    async def _watch(self, hub: socket.socket | None) -> None:
        self._loop.set_exception_handler(self._report_bug)
        if hub is not None:
            await self._connect(hub, node=0)
        self._loop.call_soon(self._beat, time.monotonic())
        if self._newcomers is None:
            await self._closing.wait()
        else:
            admitting = self._loop.create_task(self._newcomers.admit(self._connect))
            # The loop's exception handler gets the exceptions that the callback raises.
            admitting.add_done_callback(lambda task: task.cancelled() or task.result())
            await self._closing.wait()
            admitting.cancel()
            await self._newcomers.close()
        await self._finish()

    async def _finish(self) -> None:
        """Close the connections once the other nodes have read all messages, or time is up."""
        links = list(self._links.values())
        for link in links:
            link.finish()
        with suppress(asyncio.TimeoutError):
            all_ended = asyncio.gather(*(link.ended.wait() for link in links))
            await asyncio.wait_for(all_ended, _PARTING_SECONDS)
        for link in links:
            link.close()
            await link.ended.wait()

    def _report_bug(self, _: object, context: dict[str, Any]) -> None:
        """Make this node fail, and report the bug, so that no node suspects the network."""
        if self._bug is not None:
            return
        error = context.get("exception")
        self._bug = (
            f"the launcher on {self._host} can no longer watch the other nodes, because of a bug "
            f"in anyrig, not a failure of the network: {error!r}"
        )
        lines = [] if error is None else traceback.format_exception(error)
        sys.stderr.write(f"anyrig: {self._bug}\n{''.join(lines)}")
        self._forward(Message(self._node, "trouble", text=self._bug))

    def _beat(self, began: float) -> None:
        """Send "alive" and look for silent nodes, every `_BEAT_SECONDS`."""
        if self._closing.is_set():
            return
        for link in self._links.values():
            if not link.has_unsent:
                link.send(Message(self._node, "alive"))
        self._look_for_silence(began)
        self._loop.call_later(_BEAT_SECONDS, self._beat, began)

    async def _connect(self, connected: socket.socket, node: int) -> None:
        await self._loop.create_connection(
            lambda: NodeLink(node, self._add_link, self._receive, self._remove_link), sock=connected
        )

    def _add_link(self, link: NodeLink) -> None:
        self._links[link.node] = link
        for sent in self._sent:
            if sent.node != link.node:
                link.send(sent)

    def _forward(self, message: Message) -> None:
        """Send a message to all nodes except its subject, including nodes that connect later."""
        self._sent.append(message)
        for link in self._links.values():
            if link.node != message.node:
                link.send(message)

    def _receive(self, link: NodeLink, message: Message) -> None:
        if self._node == 0 and message.node != link.node:
            raise BadMessageError("it is about a node other than its sender")
        if message.event != "alive" and not self._closing.is_set():
            self._note(message)
            if self._node == 0:
                self._forward(message)

    def _remove_link(self, link: NodeLink, error: BadMessageError | None) -> None:
        del self._links[link.node]
        if self._closing.is_set() or self._bug is not None:
            return
        self._report_loss(
            link.node,
            "the launcher on {host} was killed, or its node went down"
            if error is None
            else f"the launcher on {{host}} sent a malformed message: {error}. Is it the same "
            "version of anyrig?",
        )

    def _note(self, message: Message) -> None:
        node = self._nodes.get(message.node)
        if node is None:  # the message is about this node itself
            return
        if message.event == "trouble" and node.trouble is None:
            node.trouble = message.text
        if message.end is not None:
            node.ends += (message.end,)
        node.events.add(message.event)

    def _look_for_silence(self, began: float) -> None:
        last = time.monotonic() - SILENCE_SECONDS
        for number in self._nodes if self._node == 0 else [0]:
            link = self._links.get(number)
            if (began if link is None else link.received_at) < last:
                here = (
                    "; the network of this node is down"
                    if self._address is not None and is_down(self._address)
                    else ""
                )
                self._report_loss(
                    number,
                    f"{{host}} no longer answers: it has sent nothing for {SILENCE_SECONDS:.0f} s. "
                    f"The network to that node is interrupted, or the node is down or halted{here}",
                )

    def _report_loss(self, number: int, sentence: str) -> None:
        node = self._nodes[number]
        if node.trouble is None and not node.events & {"over", "done"}:
            message = Message(number, "trouble", text=sentence.format(host=node.host))
            self._note(message)
            if self._node == 0:
                self._forward(message)
