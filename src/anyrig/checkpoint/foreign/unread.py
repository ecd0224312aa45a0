"""Name the files of a folder that were not read, and why."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path


def find_unread(folder: Path, read: Collection[str]) -> dict[str, str]:
    """Return why each file of a folder was not read, by name.

    Args:
        folder: the folder.
        read: the names of the files that were read.
    """
    unread: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        if path.name in read:
            continue
        if path.is_dir():
            unread[path.name] = "a folder; give the folder itself to read it"
        elif path.name.endswith((".safetensors", ".bin", ".pt", ".pth", ".ckpt")):
            unread[path.name] = "not a part of the model that was read; give this file itself"
        elif path.name.endswith(".index.json"):
            unread[path.name] = "the index of another save, or of another model"
        else:
            unread[path.name] = "it has no tensors of the model"
    return unread
