"""Pickles that run a command when they are loaded, and files of every format that hold them."""

from __future__ import annotations

import io
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foreign_files import (
    write_accelerate,
    write_distributed,
    write_hugging_face,
    write_legacy,
    write_nested,
    write_torch,
)


def text(value: str) -> bytes:
    """Return the instruction that pushes a text."""
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def make_payloads(sentinel: Path) -> dict[str, bytes]:
    """Return instructions that leave one value, each of which creates `sentinel` on the way."""
    command, source = text(f"touch {sentinel}"), text(f"open({str(sentinel)!r}, 'w').close()")
    os_system = b"cos\nsystem\n"
    imported = b"c__builtin__\n__import__\n" + text("os") + b"\x85R"
    getattr_system = b"c__builtin__\ngetattr\n" + imported + text("system") + b"\x86R"
    return {
        "os.system": os_system + command + b"\x85R",
        "posix.system": b"cposix\nsystem\n" + command + b"\x85R",
        "eval": b"cbuiltins\neval\n" + source + b"\x85R",
        "exec": b"cbuiltins\nexec\n" + source + b"\x85R",
        "exec of Python 2's name": b"c__builtin__\nexec\n" + source + b"\x85R",
        "Popen": b"csubprocess\nPopen\n(]" + text("touch") + b"a" + text(str(sentinel)) + b"atR",
        "nested reduce": getattr_system + command + b"\x85R",
        "partial": b"cfunctools\npartial\n" + os_system + command + b"\x86R)R",
        "INST": b"(" + command + b"ios\nsystem\n",
        "OBJ": b"(" + os_system + command + b"o",
        "STACK_GLOBAL": b"\x8c\x02os\x8c\x06system\x93" + command + b"\x85R",
        "STACK_GLOBAL from the memo": b"\x8c\x06systemq\x000\x8c\x02osh\x00\x93"
        + command
        + b"\x85R",
        "map": b"c__builtin__\nlist\nc__builtin__\nmap\n"
        + os_system
        + b"]"
        + command
        + b"a\x86R\x85R",
    }


def wrap(payload: bytes) -> bytes:
    """Return a pickle of a dict that holds the payload's value."""
    return b"\x80\x02}" + text("weight") + payload + b"s."


def replace_record(path: Path, name: str, change: Callable[[bytes], bytes]) -> Path:
    """Write a zip archive again with one record changed; checksums are right."""
    content = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(path, "w") as target:
        for record in source.infolist():
            value = source.read(record)
            is_wanted = record.filename.endswith(name)
            target.writestr(record.filename, change(value) if is_wanted else value)
    return path


def poison(path: Path, payload: bytes) -> None:
    """Put the payload into a torch file."""
    replace_record(path, "/data.pkl", lambda _: wrap(payload))


def poison_legacy(path: Path, payload: bytes) -> None:
    content = path.read_bytes()
    stream = io.BytesIO(content)
    for _ in range(3):  # magic number, version, system
        pickle.load(stream)
    path.write_bytes(content[: stream.tell()] + wrap(payload) + pickle.dumps([], 2))


def change_metadata(folder: Path, change: Callable[[Any], None]) -> Path:
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


def poison_chunk(folder: Path, payload: bytes) -> None:
    """Put the payload in place of a saved value."""
    poison(write_torch(folder / "value.pt"), payload)
    value = (folder / "value.pt").read_bytes()
    data = folder / "__0_0.distcp"
    start = data.stat().st_size
    with data.open("ab") as file:
        file.write(value)

    def change(metadata: Any) -> None:
        for index, stored in metadata.storage_data.items():
            if index.fqn == "epoch":
                stored.offset, stored.length = start, len(value)

    change_metadata(folder, change)


# How to write a good file or folder, and how to put a payload into it.
Write = Callable[[Path], Path]
Poison = Callable[[Path, bytes], None]
CONTAINERS: dict[str, tuple[Write, Poison]] = {
    "torch file": (write_nested, poison),
    "legacy torch file": (write_legacy, poison_legacy),
    "pickle": (write_torch, lambda path, payload: _write(path, wrap(payload))),
    "metadata": (
        write_distributed,
        lambda path, payload: _write(path / ".metadata", wrap(payload)),
    ),
    "chunk": (write_distributed, poison_chunk),
    "optimizer": (write_accelerate, lambda path, payload: poison(path / "optimizer.bin", payload)),
    "shard": (
        lambda path: write_hugging_face(path, "bin"),
        lambda path, payload: poison(path / "pytorch_model-00002-of-00002.bin", payload),
    ),
}


def copy(source: Path, target: Path) -> Path:
    """Copy a file or a folder."""
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    return target


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
