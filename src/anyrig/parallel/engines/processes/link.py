"""Messages between this process and one worker: values on a socket, tensors in shared memory.

::

    message ─▶ pickle ──────────────────── socket ───────────────────▶ unpickle ─▶ message
                 └─ tensors ─▶ Segment, which both map ─▶ tensors of the same memory ─┘

A segment is memory without a name: its file descriptor travels with the first message that uses it.
The sender keeps a message's segment until the receiver no longer needs the tensors, and then reuses
it, so that a training run maps no new memory. A `Block` in a message is mapped by the receiver.

The two ends of a link are a parent and its child, which made the socket pair; nothing else can
write to it, so unpickling is safe.
"""

from __future__ import annotations

import errno
import io
import math
import os
import pickle
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch import Tensor

from ....errors import SpreadError
from ...mapped_memory import Block, make_block

# The bytes of the pickle; the number of the segment, or -1, and its bytes if its file descriptor
# comes with this message; the number of file descriptors.
_HEAD = struct.Struct("=QqQq")
_MOST_DESCRIPTORS = 8
_ALIGNMENT = 64
_AWAKE_SECONDS = 0.001  # an idle processor took 0.0005 to wake
_SMALLEST = 2**16


class LinkClosed(Exception):  # noqa: N818 - an event, which its catcher explains
    """The other end has closed the link, or has ended."""


class Form(NamedTuple):
    """Where a tensor lies in a segment."""

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    learns: bool


@dataclass(eq=False)
class Segment:
    """A piece of shared memory of this process, for the tensors of one message at a time."""

    number: int
    block: Block
    is_sent: bool = False  # whether the receiver has mapped it
    is_free: bool = True


def lies_in_memory(tensor: Tensor) -> bool:
    """Return whether a tensor is nothing but elements in the host's memory."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_quantized
        and not tensor.is_nested
    )


def dump(value: Any, pickler: pickle.Pickler, problem: str, remedy: str) -> None:
    """Pickle a value; if that fails, raise SpreadError with problem, cause and remedy."""
    try:
        pickler.dump(value)
    except MemoryError:
        raise
    except Exception as error:  # of pickle, or of an object's own __getstate__
        raise SpreadError(f"{problem}: {error}. {remedy}") from error


class Link:
    """One end of the connection between this process and a worker."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._segments: list[Segment] = []
        self._mapped: dict[int, Block] = {}
        # The file descriptors and sizes of segments that are not mapped yet.
        self._arrived: dict[int, tuple[int, int]] = {}

    def send(self, message: Any) -> Segment | None:
        """Send a message; return the segment that has its tensors, to be freed by the caller.

        Raise LinkClosed if the other end is closed, and SpreadError if the message cannot be sent.
        """
        stream = io.BytesIO()
        pickler = _Pickler(stream)
        dump(
            message,
            pickler,
            "an argument or a result of the model cannot be sent to another process",
            "Pass and return tensors in containers, or use the threads of plan=Replicas()",
        )
        segment = self._fill(pickler) if pickler.size else None
        descriptors = [block.descriptor for block in pickler.blocks]
        number, size = -1, 0
        if segment is not None:
            number = segment.number
            if not segment.is_sent:
                size = segment.block.size
                descriptors.insert(0, segment.block.descriptor)
        text = stream.getbuffer()
        head = _HEAD.pack(len(text), number, size, len(descriptors))
        try:
            # In one piece: the other end, which wakes at the first byte, would wait again.
            sent = socket.send_fds(self._end, [head, text], descriptors)
            if sent < len(head) + len(text):
                self._end.sendall(memoryview(head + bytes(text))[sent:])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise LinkClosed from error
        if segment is not None and not segment.is_sent:
            segment.is_sent = True
            os.close(segment.block.descriptor)
        return segment

    def _fill(self, pickler: _Pickler) -> Segment:
        fitting = [
            each for each in self._segments if each.is_free and each.block.size >= pickler.size
        ]
        if fitting:
            segment = min(fitting, key=lambda each: each.block.size)
        else:
            size = 2 ** math.ceil(math.log2(max(pickler.size, _SMALLEST)))
            segment = Segment(len(self._segments), make_block(size))
            self._segments.append(segment)
        segment.is_free = False
        for form, tensor in pickler.tensors:
            _view(segment.block, form).copy_(tensor)
        return segment

    def receive(self, seconds: float | None = None) -> Any:
        """Return the next message, whose tensors lie in the sender's segment.

        Raise LinkClosed if the other end is closed, and TimeoutError after `seconds` without a
        message.
        """
        try:
            head, descriptors = self._first_bytes(seconds)
            head += self._read(_HEAD.size - len(head))
            length, number, size, _ = _HEAD.unpack(head)
            text = self._read(length)
        except ConnectionResetError as error:
            raise LinkClosed from error
        if size:
            self._arrived[number] = descriptors.pop(0), size
        try:
            return unpickle(text, _Placed(self._block(number), descriptors))
        except Exception as error:
            if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
                raise  # the next message may find enough
            raise SpreadError(
                "an argument or a result of the model arrived in another process, but cannot be "
                f"read there: {type(error).__name__}: {error}. Pass and return tensors in "
                "containers, or use the threads of plan=Replicas()"
            ) from error

    def _first_bytes(self, seconds: float | None) -> tuple[bytes, list[int]]:
        """Wait for a message: at first awake, as an idle processor takes long to come back."""
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        until = time.monotonic() + _AWAKE_SECONDS
        while not poll.poll(0) and time.monotonic() < until:
            os.sched_yield()
        self._end.settimeout(seconds)
        try:
            return socket.recv_fds(self._end, _HEAD.size, _MOST_DESCRIPTORS)[:2]
        finally:
            self._end.settimeout(None)

    def _block(self, number: int) -> Block | None:
        if number in self._arrived:
            descriptor, size = self._arrived[number]
            self._mapped[number] = Block(descriptor, size)
            del self._arrived[number]
            os.close(descriptor)
        return self._mapped.get(number)

    def _read(self, size: int) -> bytes:
        found = bytearray(size)
        view = memoryview(found)
        while view:
            count = self._end.recv_into(view)
            if not count:
                raise LinkClosed
            view = view[count:]
        return bytes(found)

    def is_closed(self) -> bool:
        """Return whether the other end is closed."""
        poll = select.poll()
        poll.register(self._end, 0)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close this end."""
        self._end.close()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions and classes that cannot be imported by value, and leaves out tensors."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self.size = 0
        self.tensors: list[tuple[Form, Tensor]] = []
        self.blocks: list[Block] = []
        self._known: dict[int, Form] = {}

    def persistent_id(self, value: Any) -> Form | int | None:
        if type(value) is Block:
            self.blocks.append(value)
            return value.size
        if not isinstance(value, Tensor) or not lies_in_memory(value):
            return None
        form = self._known.get(id(value))
        if form is None:
            tensor = value.detach().resolve_conj().resolve_neg()
            # The strides of a copy: those of a dense tensor, else of a contiguous one.
            strides = torch.empty_like(tensor, device="meta").stride()
            form = Form(self.size, tensor.dtype, tuple(tensor.shape), strides, value.requires_grad)
            self.size += -(-max(tensor.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
            self.tensors.append((form, tensor))
            self._known[id(value)] = form
        return form


class _Placed:
    """Returns the tensors and blocks that a pickle leaves out."""

    def __init__(self, block: Block | None, descriptors: list[int]) -> None:
        self._block, self._descriptors = block, descriptors
        self._made: dict[Form, Tensor] = {}

    def __call__(self, form: Form | int) -> Tensor | Block:
        if isinstance(form, int):
            return _map(self._descriptors.pop(0), form)
        if form not in self._made:
            assert self._block is not None
            view = _view(self._block, form)
            self._made[form] = view.detach().requires_grad_(form.learns)
        return self._made[form]


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, left_out: Callable[[Any], Any]) -> None:
        super().__init__(stream)
        self._left_out = left_out

    def persistent_load(self, key: Any) -> Any:
        return self._left_out(key)


def unpickle(text: bytes, left_out: Callable[[Any], Any]) -> Any:
    """Return what a process of this program has pickled; `left_out` returns what it left out."""
    return _Unpickler(io.BytesIO(text), left_out).load()


def survives(value: Any) -> bool:
    """Return whether the other end of a link could read a value."""
    try:
        unpickle(cloudpickle.dumps(value), lambda key: key)
    except Exception:
        return False
    return True


def _view(block: Block, form: Form) -> Tensor:
    # In a storage of its own: nested tensors are made of the whole storage of a tensor.
    flat = block.apart(form.start, form.dtype, math.prod(form.shape))
    return flat.as_strided(form.shape, form.strides)


def _map(descriptor: int, size: int) -> Block:
    try:
        return Block(descriptor, size)
    finally:
        os.close(descriptor)
