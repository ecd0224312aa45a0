"""A part of a file as a file of its own."""

from __future__ import annotations

import io
from pathlib import Path

from typing_extensions import Buffer

from ...regular_file import open_regular

_BUFFER_BYTES = 1 << 16


class _Part(io.RawIOBase):
    def __init__(self, path: Path, start: int, length: int) -> None:
        self._file = open_regular(path, follow_links=True)
        self._start = start
        self._length = length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        if origin + offset < 0:
            raise ValueError(f"the position {origin + offset} is negative")
        self._position = origin + offset
        return self._position

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        view = view[: max(0, self._length - self._position)]
        self._file.seek(self._start + self._position)
        count = self._file.readinto(view) or 0
        self._position += count
        return count

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def open_part(path: Path, start: int, length: int) -> io.BufferedReader:
    """Open `length` bytes of a file from `start` on, as a readable and seekable file.

    Raises:
        OSError: the path does not lead to a regular file, or cannot be read.
    """
    return io.BufferedReader(_Part(path, start, length), _BUFFER_BYTES)
