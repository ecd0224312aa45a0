"""Content hashes: SHA-256 over pieces of 16 MiB, in a few threads.

::

    content     │ piece 0 │ piece 1 │ piece 2 │ rest │
    threads      sha256    sha256    sha256    sha256         hashlib releases the GIL
    result       sha256( digest 0 · digest 1 · digest 2 · digest 3 )

One thread hashes more slowly than a disk writes, so several threads hash the pieces. For content
that fits in one piece, the result is the SHA-256 of its SHA-256, not the SHA-256 itself.
"""

from __future__ import annotations

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ..regular_file import open_regular

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIECE_BYTES = 16 * 2**20
_THREADS = 4
# Pieces that wait for a thread hold the memory of their content.
_MOST_PENDING = 2 * _THREADS


class ContentHash:
    """The hash of content that arrives in parts. A ``with`` block ends its threads.

    The parts must not change before `hexdigest` returns.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="anyrig-hash")
        self._total = hashlib.sha256()
        self._pending: deque[Future[bytes]] = deque()
        self._piece: list[memoryview] = []
        self._room_bytes = PIECE_BYTES

    def __enter__(self) -> ContentHash:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown(cancel_futures=True)

    def update(self, data: Buffer) -> None:
        """Append `data` to the content."""
        left = memoryview(data).cast("B")
        while left:
            part, left = left[: self._room_bytes], left[self._room_bytes :]
            self._piece.append(part)
            self._room_bytes -= len(part)
            if not self._room_bytes:
                self._begin_piece()

    def hexdigest(self) -> str:
        """Return the hash of the whole content, as hexadecimal digits."""
        if self._piece:
            self._begin_piece()
        while self._pending:
            self._total.update(self._pending.popleft().result())
        return self._total.hexdigest()

    def _begin_piece(self) -> None:
        if len(self._pending) >= _MOST_PENDING:
            self._total.update(self._pending.popleft().result())
        try:
            self._pending.append(self._threads.submit(_hash_piece, self._piece))
        except RuntimeError:  # the interpreter is ending, and starts no threads
            done: Future[bytes] = Future()
            done.set_result(_hash_piece(self._piece))
            self._pending.append(done)
        self._piece, self._room_bytes = [], PIECE_BYTES


def hash_file(path: Path) -> str:
    """Return the `ContentHash` of a file.

    Raises:
        OSError: the file is not regular, or cannot be read.
    """
    total = hashlib.sha256()
    size = path.stat().st_size
    if size <= PIECE_BYTES:  # not worth threads
        total.update(_hash_part_of_file(path, 0) if size else b"")
        return total.hexdigest()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="anyrig-hash") as threads:
        for digest in threads.map(
            lambda start: _hash_part_of_file(path, start), range(0, size, PIECE_BYTES)
        ):
            total.update(digest)
    return total.hexdigest()


def _hash_piece(parts: list[memoryview]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _hash_part_of_file(path: Path, start: int) -> bytes:
    digest = hashlib.sha256()
    left_bytes = PIECE_BYTES
    with open_regular(path) as file:
        file.seek(start)
        while left_bytes and (data := file.read(min(left_bytes, 2**20))):
            digest.update(data)
            left_bytes -= len(data)
    return digest.digest()
