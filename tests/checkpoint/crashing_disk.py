"""A disk that records what a save changes, and every state in which a crash may leave it.

A change is *pending* until its file or its folder is synced. After a crash, a file system may show
any part of the pending changes:

- of an unsynced file: what was synced, and nothing, half or all of what was written since then;
- of an unsynced folder: any subset of the names that were added and removed, in any order. A rename
  adds a name and removes another, and the two may come apart.

These states include those of file systems that keep changes in order.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from anyrig.checkpoint.disk import Disk

Change = tuple[Any, ...]


class RecordingDisk(Disk):
    """Makes the changes, and records them as (operation, path, …)."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def announce(self, number: int) -> None:
        """Record that the save has told its caller that checkpoint `number` is saved."""
        self.changes.append(("announce", number))

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self.changes.append(("make_folder", path))

    def create(self, path: Path) -> BinaryIO:
        file = super().create(path)
        self.changes.append(("create", path))
        return file

    def write(self, file: BinaryIO, data: Any) -> None:
        super().write(file, data)
        self.changes.append(("write", Path(file.name), bytes(data)))

    def sync(self, file: BinaryIO) -> None:
        super().sync(file)
        self.changes.append(("sync", Path(file.name)))

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        self.changes.append(("sync_folder", path))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.changes.append(("rename", source, target))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.changes.append(("unlink", path))

    def remove_folder(self, path: Path) -> None:
        super().remove_folder(path)
        self.changes.append(("remove_folder", path))


@dataclass(eq=False)
class File:
    content: bytes = b""
    synced: int = 0  # how many bytes are on the disk

    def crashed(self) -> list[bytes]:
        """Return the contents that a crash may leave."""
        middle = (self.synced + len(self.content)) // 2
        sizes = {self.synced, middle, len(self.content)}
        return [self.content[:size] for size in sorted(sizes)]


@dataclass(eq=False)
class Folder:
    synced: dict[str, File | Folder] = field(default_factory=dict)
    # (name, what the name stands for from now on; None if the name was removed)
    pending: list[tuple[str, File | Folder | None]] = field(default_factory=list)

    def now(self) -> dict[str, File | Folder]:
        return self._with(self.pending)

    def crashed(self) -> list[dict[str, File | Folder]]:
        """Return the names that a crash may leave."""
        return [
            self._with(subset)
            for size in range(len(self.pending) + 1)
            for subset in itertools.combinations(self.pending, size)
        ]

    def sync(self) -> None:
        self.synced, self.pending = self.now(), []

    def _with(self, changes: Any) -> dict[str, File | Folder]:
        names: dict[str, File | Folder | None] = dict(self.synced)
        names.update(changes)
        return {name: node for name, node in names.items() if node is not None}


# The names of a folder after a crash: bytes for a file, such a tuple for a folder.
Tree = tuple[tuple[str, Any], ...]


def crashes_of(
    changes: list[Change], root: Path, most_per_prefix: int, seed: int = 0
) -> Iterator[tuple[int, Tree]]:
    """Yield (last announced number, state after a crash) for a crash before each change.

    Where more than `most_per_prefix` states are possible, that many are drawn at random.
    """
    top, announced = Folder(), 0
    draw = random.Random(seed)
    for change in [*changes, None]:
        yield from ((announced, tree) for tree in _states(top, most_per_prefix, draw))
        if change is None:
            return
        if change[0] == "announce":
            announced = change[1]
        else:
            _apply(top, root, change)


def write_tree(tree: Tree, folder: Path) -> None:
    """Write a state into an empty folder."""
    for name, content in tree:
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            (folder / name).mkdir()
            write_tree(content, folder / name)


def _states(top: Folder, most: int, draw: random.Random) -> list[Tree]:
    nodes: dict[int, File | Folder] = {}

    def collect(node: File | Folder) -> None:
        nodes[id(node)] = node
        if isinstance(node, Folder):
            reachable = [*node.synced.values(), *(each for _, each in node.pending if each)]
            for each in reachable:
                if id(each) not in nodes:
                    collect(each)

    collect(top)
    choices: dict[int, list[Any]] = {key: node.crashed() for key, node in nodes.items()}
    count = 1
    for options in choices.values():
        count *= len(options)
    if count <= most:
        chosen = [
            dict(zip(choices, each, strict=True)) for each in itertools.product(*choices.values())
        ]
    else:
        chosen = [
            {key: draw.choice(options) for key, options in choices.items()} for _ in range(most)
        ]

    def build(node: File | Folder, state: dict[int, Any]) -> Any:
        found = state[id(node)]
        if isinstance(node, File):
            return found
        return tuple((name, build(each, state)) for name, each in sorted(found.items()))

    return [build(top, state) for state in chosen]


def _apply(top: Folder, root: Path, change: Change) -> None:
    def at(path: Path) -> Any:
        node: Any = top
        for part in path.relative_to(root).parts:
            node = node.now()[part]
        return node

    operation, path, *more = change
    if operation == "make_folder":
        at(path.parent).pending.append((path.name, Folder()))
    elif operation == "create":
        at(path.parent).pending.append((path.name, File()))
    elif operation == "write":
        at(path).content += more[0]
    elif operation == "sync":
        at(path).synced = len(at(path).content)
    elif operation == "sync_folder":
        at(path).sync()
    elif operation == "rename":
        parent, moved = at(path.parent), at(path)
        assert path.parent == more[0].parent
        parent.pending += [(more[0].name, moved), (path.name, None)]
    else:
        assert operation in ("unlink", "remove_folder")
        at(path.parent).pending.append((path.name, None))
