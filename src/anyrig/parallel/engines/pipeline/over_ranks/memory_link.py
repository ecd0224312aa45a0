"""Tensors from one rank to another of the same node, through memory that both map.

::

    gloo      main ─▶ poller ═══════════ poller ─▶ main      the pollers read and write the socket
    memory    main ─copy─▶ block ─copy─▶ main                a socket says which block is full, and
                                                             which has been read

Where every core computes, each thread that wakes up interrupts a computation. Receiving 128 KiB
took 0.6 ms of CPU time with gloo.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

from torch import Tensor

from .....processes.group.board import board_of
from .....processes.group.membership import Group
from .....processes.group.node_sockets import connect_ranks, group_limit_seconds
from ....mapped_memory import NONE, Block, Sample, make_block, make_sample, open_block
from .contents import Form

# A message of more bytes is left to gloo: it costs no more there, and blocks are never given back.
MOST_BYTES = 4 * 2**20
# The tag of the pass, a block, the number of bytes in it, and its file descriptor if the receiver
# has not seen the block yet. A receipt has `NONE` for the last two.
_NOTE = struct.Struct("=4q")
_ALIGNMENT = 64


class _Numbers:
    """Numbers the messages of each pass; a rank ends a pass before it begins the next one."""

    def __init__(self) -> None:
        self._tag, self._count = NONE, count()

    def assign(self, tag: int) -> tuple[int, int]:
        """Return the tag and the number of the next message with this tag."""
        if tag != self._tag:
            self._tag, self._count = tag, count()
        return tag, next(self._count)


class MemoryLink:
    """This rank's end of a link with another rank, in both directions.

    Messages are numbered by pass, so that no pass can take those of another.

    Args:
        connected: a socket to the other rank.
        process: the number of the other rank's process.
    """

    def __init__(self, connected: socket.socket, process: int) -> None:
        self._socket, self._process = connected, process
        self._own: list[Block] = []  # which this rank fills
        self._free: list[int] = []
        self._theirs: dict[int, Block] = {}
        self._partial = b""
        self._expected, self._arriving = _Numbers(), _Numbers()
        self._arrived: dict[tuple[int, int], tuple[int, int]] = {}  # by number: block and bytes

    def send(self, tensors: Sequence[Tensor], tag: int) -> None:
        """Send strided tensors in the pass `tag`, without waiting for the other rank."""
        size = sum([_room(each.nbytes) for each in tensors])
        number = self._take_block(size)
        block, start = self._own[number], 0
        for tensor in tensors:
            block.view(start, tensor.dtype, tensor.shape).copy_(tensor.detach())
            start += _room(tensor.nbytes)
        self._write(tag, number, size, block.descriptor)

    def expect(self, tag: int) -> tuple[int, int]:
        """Return the number of the next message of the other rank in the pass `tag`."""
        return self._expected.assign(tag)

    def take(self, number: tuple[int, int], forms: Sequence[Form], ends: float) -> list[Tensor]:
        """Return the tensors of a message; `ends` limits the wait, by `time.monotonic`.

        Raises:
            RuntimeError: the message did not come in time, or the other rank has ended.
        """
        while number not in self._arrived:
            self._read_note(ends)
        block, size = self._arrived.pop(number)
        expected = sum([_room(form.bytes) for form in forms])
        if expected != size:
            raise RuntimeError(f"a message of {size} bytes arrived instead of {expected}")
        start, found = 0, []
        for form in forms:
            found.append(self._theirs[block].view(start, form.dtype, form.shape).clone())
            start += _room(form.bytes)
        self._write(number[0], block, NONE, NONE)
        return found

    def finish_sending(self, ends: float) -> None:
        """Wait until the other rank has taken all messages; raise as `take` does."""
        while len(self._free) < len(self._own):
            self._read_note(ends)

    def close(self) -> None:
        """End the waits of the other rank for this one."""
        self._socket.close()
        for block in self._own:
            _close_descriptor(block)

    def __del__(self) -> None:
        self.close()

    def _take_block(self, size: int) -> int:
        """Return the smallest free block of at least `size` bytes, or a new one."""
        chosen = self._find_block(size)
        if chosen is None:  # only now look which blocks the other rank has read meanwhile
            while self._read_note(None):
                pass
            chosen = self._find_block(size)
        if chosen is not None:
            self._free.remove(chosen)
            return chosen
        self._own.append(make_block(size))
        return len(self._own) - 1

    def _find_block(self, size: int) -> int | None:
        fitting = [each for each in self._free if self._own[each].size >= size]
        return min(fitting, key=lambda each: self._own[each].size, default=None)

    def _write(self, *note: int) -> None:
        try:
            self._socket.settimeout(None)
            self._socket.sendall(_NOTE.pack(*note))
        except OSError as error:
            raise RuntimeError(str(error)) from error

    def _read_note(self, ends: float | None) -> bool:
        """Read the next note; without `ends`, do not wait, and return whether there was one."""
        seconds = 0.0 if ends is None else max(1e-4, ends - time.monotonic())
        try:
            self._socket.settimeout(seconds)
            data = self._socket.recv(_NOTE.size - len(self._partial))
        except BlockingIOError:
            return False
        except TimeoutError:
            raise RuntimeError("Timed out waiting for a message") from None
        except OSError as error:
            raise RuntimeError(str(error)) from error
        if not data:
            raise RuntimeError("Connection closed by peer")
        self._partial += data
        if len(self._partial) == _NOTE.size:
            note, self._partial = self._partial, b""
            self._note(*_NOTE.unpack(note))
        return True

    def _note(self, tag: int, block: int, size: int, descriptor: int) -> None:
        if size == NONE:
            _close_descriptor(self._own[block])
            self._free.append(block)
            return
        if descriptor != NONE:
            try:
                self._theirs[block] = open_block(self._process, descriptor)
            except OSError as error:  # the other rank has closed the link, or has ended
                raise RuntimeError(f"Connection closed by peer ({error})") from error
        self._arrived[self._arriving.assign(tag)] = block, size


def _close_descriptor(block: Block) -> None:
    if block.descriptor != NONE:
        os.close(block.descriptor)
        block.descriptor = NONE


def _room(size: int) -> int:
    """Return how many bytes of a block a tensor of `size` bytes takes."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def open_memory_links(group: Group, name: str) -> dict[int, MemoryLink]:
    """Return a link with each other rank; every rank must call this.

    No rank gets links unless all compute on the CPU of one node, and can map each other's memory.

    Args:
        group: the group of all ranks.
        name: the kind of exchange on the group's board.
    """
    sockets = connect_ranks(group, name)
    if sockets is None:
        return {}

    def exchange(own: Any) -> list[Any]:
        texts = board_of(group).exchange(
            name, json.dumps(own).encode(), group_limit_seconds(), "spread()"
        )
        return list(map(json.loads, texts))

    sample = make_sample()
    samples = [Sample(*each) for each in exchange(sample)]
    can_map = all(exchange(all(each.can_be_opened() for each in samples)))
    if sample.descriptor != NONE:
        os.close(sample.descriptor)
    if not can_map:
        for each in sockets.values():
            each.close()
        return {}
    return {rank: MemoryLink(each, samples[rank].process) for rank, each in sockets.items()}
