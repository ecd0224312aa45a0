"""The hash of a file: SHA-256 over the SHA-256 of each piece of 16 MiB."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from anyrig.checkpoint.digest import ContentHash, hash_file

PIECE = 16 * 2**20


def expected_hash(content: bytes) -> str:
    pieces = [content[start : start + PIECE] for start in range(0, len(content), PIECE)]
    return hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in pieces)).hexdigest()


def make_content(size: int) -> bytes:
    """Return bytes that differ from piece to piece."""
    return b"".join(bytes([number]) * PIECE for number in range(-(-size // PIECE)))[:size]


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 2 * PIECE + 5])
def test_pieces_are_hashed_in_order(size: int, tmp_path: Path) -> None:
    content = make_content(size)
    (tmp_path / "a").write_bytes(content)
    assert hash_file(tmp_path / "a") == expected_hash(content)
    with ContentHash() as written:
        for start in range(0, size, PIECE - 3):  # parts end within pieces
            written.update(content[start : start + PIECE - 3])
        assert written.hexdigest() == expected_hash(content)


def test_more_pieces_than_may_wait_are_hashed_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyrig.checkpoint.digest.PIECE_BYTES", 4)
    content = os.urandom(402)
    digests = [hashlib.sha256(content[at : at + 4]).digest() for at in range(0, 402, 4)]
    with ContentHash() as written:
        written.update(content)
        assert written.hexdigest() == hashlib.sha256(b"".join(digests)).hexdigest()
