"""Sending tensors between the ranks of one pipeline.

::

    CPU     memory that both ranks map, on one node and for messages that are not large; else
            gloo: a connection for each pair of ranks, in both directions at once
    GPUs    NCCL: a process group for each pair of stages and direction, as one group's transfers
            are sequential, and a receive that was posted early would hold up the sends

Texts, and what no stage reads, such as outputs, go through the hosts. Losses are added up through
sockets on the CPUs of one node. Each pass has a tag of its own, so that no later pass receives its
messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .....errors import OtherRankError, RankWaitError
from .....processes.group.board import Board, board_of
from .....processes.group.caller_place import place_of_caller
from .....processes.group.membership import Group, carrier_of
from .....processes.time_limit import limit_or_default
from .....processes.torch_faults import keep_until_exit
from .....processes.waits import waits_for_ranks
from .contents import Contents, Form
from .memory_link import MOST_BYTES, MemoryLink, open_memory_links
from .row import Row
from .socket_sums import SocketSums, open_socket_sums

# Tags repeat after this many passes.
MOST_PASSES = 2**30
_CLOSING_TAG = MOST_PASSES  # see `Links.fail`
_CLOSING = timedelta(milliseconds=1)


@dataclass
class Arriving:
    """Tensors that are being received from the device `sender`.

    Attributes:
        buffers: where the tensors arrive.
        works: one for each buffer that has elements.
        sender: the number of the sending device.
        through_hosts: whether the tensors arrive on the CPU.
        number: the number of the message in `MemoryLink`, if the tensors arrive by memory.
        forms: the forms of these tensors.
    """

    buffers: list[Tensor]
    works: list[Any]
    sender: int
    through_hosts: bool
    number: tuple[int, int] | None = None
    forms: Sequence[Form] = ()


@dataclass
class _Sent:
    """A tensor that is being sent, and must stay in memory until it has left."""

    tensor: Tensor
    work: Any
    receiver: int
    through_host: bool


class _Explained:
    """The context of a wait, which explains its RuntimeError; see `Links.explain`.

    A generator would be shorter, and slower in every message.
    """

    __slots__ = ("_links", "_place", "_started", "_what")

    def __init__(self, links: Links, place: int | None, what: object) -> None:
        self._links, self._place, self._what = links, place, what

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if isinstance(error, RuntimeError):
            seconds = time.monotonic() - self._started
            raise self._links.explain(error, self._place, self._what, seconds) from error


@dataclass(eq=False)
class Links:
    """The links of this rank with the other ranks of its pipeline.

    Attributes:
        group: the group of all ranks.
        row: the ranks of this pipeline.
        name: the model's name, unique in the group.
        hosts: a gloo group of all ranks.
        pairs: the process group of each sending and receiving device; empty on the CPU.
        equals: the process group of the ranks with the same stages; None if there are no others.
        memory: the links by memory with the other ranks; empty if there are none.
        sums: adds up a few numbers over all ranks; None if the hosts do.
    """

    group: Group
    row: Row
    name: str
    hosts: Any
    pairs: dict[tuple[int, int], Any]
    equals: Any = None
    memory: Mapping[int, MemoryLink] = field(default_factory=dict)
    sums: SocketSums | None = None
    _sent: list[_Sent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._device = self.group.device
        self._limit = timedelta(seconds=limit_or_default(None))

    @property
    def board(self) -> Board:
        """The board of all ranks."""
        return board_of(self.group)

    def send(self, contents: Contents, receiver: int, tag: int, with_text: bool) -> None:
        """Start to send tensors, and the text before them if `with_text`."""
        if with_text:
            text = torch.frombuffer(bytearray(contents.text.encode()), dtype=torch.uint8)
            for part in (torch.tensor([len(text)]), text):
                self._send(part, receiver, tag, self.hosts)
        link = self._link(receiver, sum(each.nbytes for each in contents.tensors))
        if link is not None:
            with self._explained(receiver, "a transfer between stages"):
                link.send(contents.tensors, tag)
            return
        pair = self.pairs.get((self.row.place, receiver))
        for tensor in contents.tensors:
            if tensor.numel():
                sent = tensor.detach().resolve_conj().resolve_neg().contiguous()
                if pair is None:  # gloo sends tensors of the CPU only
                    self._send(sent.cpu(), receiver, tag, self.hosts)
                else:
                    self._send(sent, receiver, tag, pair)

    def post(self, forms: Sequence[Form], sender: int, tag: int) -> Arriving:
        """Start to receive tensors; see `take`."""
        pair = self.pairs.get((sender, self.row.place))
        where = torch.device("cpu") if pair is None else self._device
        data = self.hosts if pair is None else pair
        arriving = Arriving([], [], sender, pair is None)
        link = self._link(sender, sum(form.bytes for form in forms))
        if link is not None:
            arriving.number, arriving.forms = link.expect(tag), forms
            return arriving
        for form in forms:
            buffer = torch.empty(form.shape, dtype=form.dtype, device=where)
            arriving.buffers.append(buffer)
            if buffer.numel():
                with self._explained(sender, "a transfer between stages"):
                    arriving.works.append(dist.irecv(buffer, self._rank(sender), data, tag))
        return arriving

    def take(self, arriving: Arriving, what: object) -> list[Tensor]:
        """Return tensors when they have arrived.

        Raises:
            OtherRankError: the sender, or the rank for which it waits, has failed.
            RankWaitError: the sender did not send in time, or has ended.
        """
        if arriving.number is not None:
            return self._take_from_memory(arriving, arriving.number, what)
        for work in arriving.works:
            if not arriving.through_hosts:
                work.wait()  # the current stream waits, and the host does not
            else:
                self._wait(work, arriving.sender, what)
        return [buffer.to(self._device) for buffer in arriving.buffers]

    @waits_for_ranks
    def _take_from_memory(
        self, arriving: Arriving, number: tuple[int, int], what: object
    ) -> list[Tensor]:
        link = self.memory[self._rank(arriving.sender)]
        with self._explained(arriving.sender, what):
            return link.take(number, arriving.forms, self._ends())

    def receive_text(self, sender: int, tag: int, what: str) -> str:
        """Return the text that a rank sends; raise as `take` does."""
        parts = []
        size = 1
        for dtype in (torch.int64, torch.uint8):
            buffer = torch.empty(size, dtype=dtype, device="cpu")
            with self._explained(sender, what):
                work = dist.irecv(buffer, self._rank(sender), self.hosts, tag)
            self._wait(work, sender, what)
            parts.append(buffer)
            size = int(buffer[0]) if dtype is torch.int64 else 0
        return bytes(parts[1].tolist()).decode()

    def add_up(self, tensor: Tensor, group: Any = None) -> None:
        """Add up a tensor over the ranks of `group`, in place; by default over all ranks.

        Raises:
            OtherRankError: another rank has failed.
            RankWaitError: another rank did not come in time, or has ended.
        """
        self.begin_sum(tensor, group)()

    def begin_sum(self, tensor: Tensor, group: Any = None) -> Callable[[], None]:
        """Begin to add up a tensor as `add_up` does.

        Return a function that waits for the sum, and raises as `add_up` does.
        """
        if self.sums is not None and group is None:
            return partial(self._finish_socket_sum, self.sums.begin(tensor))
        here = tensor if self.pairs else tensor.cpu()
        over = group if self.pairs else group or self.hosts
        with self._explained(None, "a sum over ranks"):
            work = dist.all_reduce(here, group=over, async_op=True)
        return lambda: self._finish_sum(work, here, tensor)

    @waits_for_ranks
    def _finish_socket_sum(self, finish: Callable[[timedelta], None]) -> None:
        with self._explained(None, "a sum over ranks"):
            finish(self._limit)

    @waits_for_ranks
    def _finish_sum(self, work: Any, here: Tensor, tensor: Tensor) -> None:
        if self.pairs:
            work.wait()  # the current stream waits, and the host does not
            return
        with self._explained(None, "a sum over ranks"):
            work.wait(self._limit)
        if here is not tensor:
            tensor.copy_(here)

    @waits_for_ranks
    def broadcast(self, tensor: Tensor, row: int) -> None:
        """Give a tensor the values that it has in pipeline `row`, on all ranks of `equals`.

        Raises as `add_up` does.
        """
        source = self.row.ranks_of(row)[self.row.place]
        if self.pairs:
            dist.broadcast(tensor, source, self.equals)
            return
        here = tensor.cpu()
        with self._explained(None, "the buffers of equal stages"):
            work: Any = dist.broadcast(here, source, self.equals, async_op=True)
            work.wait(self._limit)
        if here is not tensor:
            tensor.copy_(here)

    def finish_sending(self) -> None:
        """Wait until other ranks have received what was sent through the hosts."""
        for place, rank in enumerate(self.row.ranks):
            if rank in self.memory:
                self._finish_sending_to(place, self.memory[rank])
        for sent in self._sent:
            if sent.through_host:
                self._wait(sent.work, sent.receiver, "the end of a call of a model in stages")
        self._sent = [
            sent for sent in self._sent if not (sent.through_host or sent.work.is_completed())
        ]

    def fail(self, error: BaseException) -> None:
        """Report an error to the other ranks, and end their waits for this rank."""
        if not isinstance(error, (OtherRankError, RankWaitError)):
            notes = getattr(error, "__notes__", [])
            text = "\n".join([f"{type(error).__name__}: {error}", *notes])
            self.board.post(self._failure_key, f"rank {self.group.rank} failed: {text}".encode())
        self._sent.clear()
        for link in self.memory.values():
            link.close()
        if self.sums is not None:
            self.sums.close()
        # A wait that times out closes gloo's connection, which ends the waits of the other side.
        # gloo's groups have no other way to end before all ranks have called `destroy`.
        for group in (self.hosts, *([] if self.pairs or self.equals is None else [self.equals])):
            for rank in dist.get_process_group_ranks(group):
                if rank != self.group.rank:
                    buffer = torch.empty(1, device="cpu")
                    with suppress(RuntimeError):
                        work: Any = dist.irecv(buffer, rank, group, _CLOSING_TAG)
                        work.wait(_CLOSING)

    @property
    def _failure_key(self) -> str:
        return f"{self.name}/failure"

    def _rank(self, place: int) -> int:
        return self.row.ranks[place]

    def _link(self, place: int, size: int) -> MemoryLink | None:
        """Return the link by memory for a message of `size` bytes; None if others carry it."""
        return self.memory.get(self._rank(place)) if 0 < size <= MOST_BYTES else None

    def _ends(self) -> float:
        """Return when a wait that begins now ends, by `time.monotonic`."""
        return time.monotonic() + self._limit.total_seconds()

    @waits_for_ranks
    def _finish_sending_to(self, place: int, link: MemoryLink) -> None:
        with self._explained(place, "the end of a call of a model in stages"):
            link.finish_sending(self._ends())

    def _send(self, tensor: Tensor, receiver: int, tag: int, group: Any) -> None:
        with self._explained(receiver, "a transfer between stages"):
            work = dist.isend(tensor, self._rank(receiver), group, tag)
        self._sent.append(_Sent(tensor, work, receiver, group is self.hosts))

    @waits_for_ranks
    def _wait(self, work: Any, place: int | None, what: object) -> None:
        with self._explained(place, what):
            work.wait(self._limit)

    def _explained(self, place: int | None, what: object) -> _Explained:
        return _Explained(self, place, what)

    def explain(
        self, error: RuntimeError, place: int | None, what: object, seconds: float
    ) -> Exception:
        """Return the error to raise for one that came while this rank waited for `place`."""
        others = [rank for rank in range(self.group.world_size) if rank != self.group.rank]
        ranks = others if place is None else [self._rank(place)]
        named = "other ranks" if place is None else f"rank {ranks[0]}"
        failure = self.board.look([self._failure_key])[0]
        if failure is not None:
            return OtherRankError(
                f"rank {self.group.rank} waited for {named} at {what}, and {failure.decode()}"
            )
        if "timed out" in str(error).lower():
            return self.board.late(ranks, round(seconds), str(what), place_of_caller())
        return RankWaitError(
            f"rank {self.group.rank} waited for {named} at {what}, and the connection ended "
            f"({error}). See the output of {named}",
            ranks,
        )


def open_links(
    group: Group, row: Row, name: str, hosts: Any, pairs: Sequence[Any], equals: Any
) -> Links:
    """Return the links between the ranks of a pipeline; every rank must call this.

    Args:
        group: the group of all ranks.
        row: the ranks of this pipeline.
        name: the model's name, unique in the group.
        hosts: a gloo group of all ranks.
        pairs: (sending device, receiving device), in order.
        equals: the process group of the ranks with the same stages.
    """
    backend = carrier_of(dist.get_backend_config(), group.device)
    opened: dict[tuple[int, int], Any] = {}
    if group.device.type != "cpu" and backend != "gloo":
        for number in range(row.count):
            ranks = row.ranks_of(number)
            for sender, receiver in pairs:
                made = dist.new_group([ranks[sender], ranks[receiver]], backend=backend)
                if number == row.number and row.place in (sender, receiver):
                    keep_until_exit(made)
                    opened[sender, receiver] = made
    memory = open_memory_links(group, f"{name}/memory")
    sums = open_socket_sums(group, f"{name}/sums", timedelta(seconds=limit_or_default(None)))
    return Links(group, row, name, hosts, opened, equals, memory, sums)
