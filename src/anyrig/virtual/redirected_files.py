"""Redirection of Python's file functions in a shape-only rehearsal: old files never change.

Each redirected function looks up its file in the `Scratch`. A write to a file from before the
rehearsal goes to the script's version of the file, and later reads find that version. New files
stay where the script creates them. `refused_writes` rejects writes through functions that the
program imported by name earlier. Files that C++ code opens by itself are not redirected.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from .scratch import Scratch

_PATH_KEYWORDS = ("path", "file", "src")
# Keywords for descriptors of folders, and the positions of the paths that lie in them.
_FOLDER_KEYWORDS = {"dir_fd": 0, "src_dir_fd": 0, "dst_dir_fd": 1}
_POSITION_OF_OPENER = 5  # among the arguments of `open` that follow the mode


def redirect(scratch: Scratch) -> None:
    """Redirect this process's changes of old files to `scratch`, for the rest of its life."""
    files = _Files(scratch)
    opened: Any = _wrap(scratch, io.open, files.open)
    builtins.open = io.open = opened
    of_os: dict[str, Callable[..., Any]] = {
        "stat": files.stat,
        "access": functools.partial(files.inspect, scratch.find),
        "chmod": functools.partial(files.inspect, scratch.find),
        "lstat": functools.partial(files.inspect, scratch.find_link),
        "readlink": functools.partial(files.inspect, scratch.find_link),
        "open": files.open_descriptor,
        "truncate": files.truncate,
        "utime": files.set_times,
        "listdir": files.list,
        "scandir": files.scan,
        "mkdir": files.make_folder,
        "rmdir": files.remove_folder,
        "remove": files.remove,
        "unlink": files.remove,
        "rename": files.move,
        "replace": files.move,
        "symlink": files.link_symbolically,
        "link": files.link,
    }
    of_shutil: dict[str, Callable[..., Any]] = {"copyfile": files.copy, "rmtree": files.remove_tree}
    for module, functions in ((os, of_os), (shutil, of_shutil)):
        for name, redirected in functions.items():
            setattr(module, name, _wrap(scratch, getattr(module, name), redirected))


def _wrap(scratch: Scratch, original: Any, redirected: Callable[..., Any]) -> Any:
    """Return a function that calls `redirected` for paths, and `original` otherwise."""

    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if scratch.is_bypassed:
            return original(*arguments, **keywords)
        if not arguments:
            arguments = tuple(keywords.pop(name) for name in _PATH_KEYWORDS if name in keywords)
        if "dst" in keywords:
            arguments = (*arguments, keywords.pop("dst"))
        arguments = _without_descriptors(original, arguments, keywords)
        path = os.fspath(arguments[0]) if _is_path(*arguments[:1]) else None
        if not isinstance(path, str):
            return original(*arguments, **keywords)
        return redirected(original, path, *arguments[1:], **keywords)

    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if original in able:
            able.add(call)
    return call


def _without_descriptors(
    original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Any, ...]:
    """Return the arguments with paths in place of descriptors of folders.

    The descriptors are removed from `keywords`.
    """
    paths = [*arguments]
    for keyword, position in _FOLDER_KEYWORDS.items():
        folder = keywords.pop(keyword, None)
        position = 1 if original.__name__ == "symlink" else position
        if folder is not None and _is_path(*paths[position : position + 1]):
            paths[position] = os.path.join(_path_of_folder(folder), paths[position])
    if original.__name__ == "listdir" and paths and isinstance(paths[0], int):
        paths[0] = _path_of_folder(paths[0])
    return tuple(paths)


def _path_of_folder(descriptor: int) -> str:
    return os.path.realpath(f"/proc/self/fd/{descriptor}")


def _is_path(first: object = None) -> bool:
    return isinstance(first, (str, os.PathLike))


class _Files:
    """The redirected functions. Each takes the original function as its first argument."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch

    def inspect(
        self, find: Callable[[str], str], original: Any, path: str, *rest: Any, **keywords: Any
    ) -> Any:
        return original(find(path), *rest, **keywords)

    def stat(self, original: Any, path: str, **keywords: Any) -> Any:
        find = (
            self._scratch.find if keywords.get("follow_symlinks", True) else self._scratch.find_link
        )
        return original(find(path), **keywords)

    def open(self, original: Any, path: str, mode: str = "r", *rest: Any, **keywords: Any) -> Any:
        opener = keywords.get("opener") or rest[_POSITION_OF_OPENER : _POSITION_OF_OPENER + 1]
        if not opener and isinstance(mode, str):
            writes = bool(set(mode) & set("wax+"))
            path = self._path_to_open(path, writes=writes, new="x" in mode, keep="w" not in mode)
        return original(path, mode, *rest, **keywords)

    def open_descriptor(
        self, original: Any, path: str, flags: int, *rest: Any, **keywords: Any
    ) -> Any:
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
        # Without O_CREAT, the version must already exist, so it starts as a copy.
        new, keep = bool(flags & os.O_EXCL), flags & os.O_TRUNC == 0 or flags & os.O_CREAT == 0
        return original(
            self._path_to_open(path, writes=writes, new=new, keep=keep), flags, *rest, **keywords
        )

    def _path_to_open(self, path: str, *, writes: bool, new: bool, keep: bool) -> str:
        found = self._scratch.find(path)
        if writes and not (new and found == path):
            return self._scratch.for_writing(path, keep=keep)
        return found

    def truncate(self, original: Any, path: str, length: int) -> None:
        original(self._scratch.for_writing(path, keep=True), length)

    def set_times(self, original: Any, path: str, *rest: Any, **keywords: Any) -> None:
        follows = keywords.get("follow_symlinks", True)
        found = self._scratch.find(path) if follows else self._scratch.find_link(path)
        place = os.path.realpath(found) if follows else found
        if not self._scratch.is_old(place):  # an old file keeps its times, which mark it as old
            original(found, *rest, **keywords)
            self._scratch.mark_new(place)

    def list(self, original: Any, path: str) -> list[str]:
        removed, own = self._scratch.differences(path)
        return [*(name for name in original(path) if name not in removed | own), *sorted(own)]

    def scan(self, original: Any, path: str) -> Any:
        removed, own = self._scratch.differences(path)
        if not removed | own:
            return original(path)
        entries = [entry for entry in original(path) if entry.name not in removed | own]
        versions = original(self._scratch.version_of(os.path.realpath(path))) if own else []
        return _Entries([*entries, *(entry for entry in versions if entry.name in own)])

    def make_folder(self, original: Any, path: str, *rest: Any, **keywords: Any) -> None:
        if self._scratch.is_removed(path):
            self._scratch.unmark_removed(path)  # the folder is empty, since its files stay marked
        else:
            original(path, *rest, **keywords)

    def remove_folder(self, original: Any, path: str) -> None:
        removed, own = self._scratch.differences(path)
        if removed and not own and set(_directly(self._scratch, os.listdir, path)) <= removed:
            self._scratch.delete_versions(path)
            self._scratch.mark_removed(path)
        else:
            original(path)

    def remove(self, _original: Any, path: str) -> None:
        self._scratch.remove(path)

    def remove_tree(self, original: Any, path: str, *rest: Any, **keywords: Any) -> None:
        scratch = self._scratch
        found = [(folder, names) for folder, _, names in os.walk(path)]
        files = [os.path.join(folder, name) for folder, names in found for name in names]
        kept = any(scratch.is_old(file) for file in files)
        for file in files:
            if kept or scratch.find_link(file) != file:
                scratch.remove(file)
        scratch.delete_versions(path)
        if kept:
            for folder, _ in found:
                scratch.mark_removed(folder)
        else:
            _directly(scratch, original, path, *rest, **keywords)

    def move(self, original: Any, source: str, target: Any, **keywords: Any) -> None:
        scratch, target = self._scratch, os.fspath(target)
        found = scratch.find_link(source)
        is_unversioned = found == source and scratch.find_link(target) == target
        if _directly(scratch, _is_folder, source) and found == source:
            self._move_folder(original, source, target)
        elif is_unversioned and not scratch.is_old(source) and not scratch.is_old(target):
            original(source, target, **keywords)
        else:
            self._move_to_version(original, source, target)

    def _move_to_version(self, original: Any, source: str, target: str) -> None:
        scratch = self._scratch
        found = scratch.find_link(source)
        with scratch.directly():
            os.lstat(found)  # raises FileNotFoundError if the script sees no such file
            if os.path.isdir(target):
                original(found, target)  # raises the system's error
            version = scratch.new_version(target)
            if found == source:
                shutil.copy2(found, version, follow_symlinks=False)
            else:
                os.replace(found, version)
            if os.path.lexists(source) and not scratch.is_removed(source):
                scratch.remove(source)

    def _move_folder(self, original: Any, source: str, target: str) -> None:
        scratch = self._scratch
        folders = [(folder, names) for folder, _, names in os.walk(source)]
        files = [os.path.join(folder, name) for folder, names in folders for name in names]
        if not any(scratch.is_old(file) for file in files):
            versions = [file for file in files if scratch.find_link(file) != file]
            for file in versions:
                moved = scratch.new_version(os.path.join(target, os.path.relpath(file, source)))
                _directly(scratch, os.replace, scratch.find_link(file), moved)
            original(source, target)
            return
        # Old files stay in place, so the script gets a folder of copies.
        for folder, _ in folders:
            os.makedirs(os.path.normpath(os.path.join(target, os.path.relpath(folder, source))))
        for file in files:
            self.move(original, file, os.path.join(target, os.path.relpath(file, source)))
        for folder, _ in folders:
            scratch.mark_removed(folder)

    def copy(self, original: Any, source: str, target: Any, **keywords: Any) -> Any:
        if self._scratch.find(source) == source:
            return original(source, target, **keywords)
        # The source has no values, so its copy must not appear among real files either.
        original(source, self._scratch.for_tensors(os.fspath(target)), **keywords)
        return target

    def link_symbolically(self, original: Any, source: str, target: Any, *rest: Any) -> None:
        original(source, self._free_name(os.fspath(target)), *rest)

    def link(self, original: Any, source: str, target: Any, **keywords: Any) -> None:
        target, found = os.fspath(target), self._scratch.find(source)
        place = self._free_name(target) if found == source else self._scratch.new_version(target)
        original(found, place, **keywords)

    def _free_name(self, path: str) -> str:
        return self._scratch.new_version(path) if self._scratch.is_removed(path) else path


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _directly(scratch: Scratch, function: Any, *arguments: Any, **keywords: Any) -> Any:
    with scratch.directly():
        return function(*arguments, **keywords)


class _Entries:
    """An iterator over folder entries with the interface of `os.scandir`'s result."""

    def __init__(self, entries: list[os.DirEntry[str]]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        return self._entries

    def __next__(self) -> os.DirEntry[str]:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())
