"""Memory that two processes of one user map. It has no name, and no file."""

from __future__ import annotations

import math
import mmap
import os
import secrets
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NONE = -1  # no file descriptor
_SECRET_BYTES = 32
_MOST_VIEWS = 64  # of each block, kept since each message would make them again


class Block:
    """A piece of memory that both processes map; the system frees it when both have ended.

    Args:
        descriptor: its file descriptor.
        size: the number of bytes.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._memory = mmap.mmap(descriptor, size)
        # Training may fill a block that an evaluation made, with or without inference mode.
        with torch.inference_mode(False):
            self.data = torch.frombuffer(self._memory, dtype=torch.uint8)
        self.descriptor, self.size = descriptor, size
        self._views: dict[tuple[int, torch.dtype, Sequence[int]], Tensor] = {}

    def view(self, start: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """Return a part of the memory, from byte `start` on, as a tensor."""
        key = start, dtype, shape
        found = self._views.get(key)
        if found is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            end = start + math.prod(shape) * dtype.itemsize
            with torch.inference_mode(False):
                found = self._views[key] = self.data[start:end].view(dtype).view(shape)
        return found

    def apart(self, start: int, dtype: torch.dtype, count: int) -> Tensor:
        """Return `count` elements from byte `start` on, in a storage that has nothing else."""
        if not count:
            return torch.empty(0, dtype=dtype)
        with torch.inference_mode(False):
            return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=start)


def make_block(size: int) -> Block:
    """Return a new block; close its descriptor when the other process has mapped the block."""
    descriptor = os.memfd_create("anyrig")
    try:
        os.ftruncate(descriptor, size)
        return Block(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise


def open_block(process: int, descriptor: int) -> Block:
    """Return a block of another process; raise OSError if this process cannot map it."""
    own = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
    try:
        return Block(own, os.fstat(own).st_size)
    finally:
        os.close(own)


class Sample(NamedTuple):
    """A block with a secret, which shows whether another process can map blocks of this one."""

    process: int
    descriptor: int  # `NONE` if the system has no such memory
    secret: str

    def can_be_opened(self) -> bool:
        """Return whether this process can map the block, and finds the secret there."""
        try:
            block = open_block(self.process, self.descriptor)
        except (OSError, ValueError):
            return False
        return bytes(block.data.tolist()) == self.secret.encode()


def make_sample() -> Sample:
    """Return a sample of this process."""
    secret = secrets.token_hex(_SECRET_BYTES // 2)
    if not hasattr(os, "memfd_create"):
        return Sample(os.getpid(), NONE, secret)
    descriptor = os.memfd_create("anyrig")
    os.write(descriptor, secret.encode())
    return Sample(os.getpid(), descriptor, secret)
