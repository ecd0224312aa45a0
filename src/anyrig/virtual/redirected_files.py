"""Python's file functions in a shape-only rehearsal: a file that was there is never changed.

Each function asks the `Scratch` which file is meant. What would change a file from before the
rehearsal goes to the script's version of it, and what reads finds that version. New files stay
where the script puts them. What was taken from the library by name before is refused by
`refused_writes`; files that C++ code opens by itself are not redirected.
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
_FOLDER_KEYWORDS = ("dir_fd", "src_dir_fd", "dst_dir_fd")
_POSITION_OF_OPENER = 5  # among the arguments of `open` that follow the mode


def redirect(scratch: Scratch) -> None:
    """Send what this process writes over existing files to `scratch`, for the rest of its life."""
    files = _Files(scratch)
    opened: Any = _wrap(scratch, io.open, files.open)
    builtins.open = io.open = opened
    of_os: dict[str, Callable[..., Any]] = {
        "stat": files.stat,
        "access": functools.partial(files.look, scratch.at),
        "chmod": functools.partial(files.look, scratch.at),
        "lstat": functools.partial(files.look, scratch.link_at),
        "readlink": functools.partial(files.look, scratch.link_at),
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


def _wrap(scratch: Scratch, plain: Any, redirected: Callable[..., Any]) -> Any:
    """Return a function that stands for `plain`, and calls `redirected` for paths."""

    @functools.wraps(plain)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if scratch.is_bypassed or any(keywords.get(name) is not None for name in _FOLDER_KEYWORDS):
            return plain(*arguments, **keywords)
        if not arguments:
            arguments = tuple(keywords.pop(name) for name in _PATH_KEYWORDS if name in keywords)
        if "dst" in keywords:
            arguments = (*arguments, keywords.pop("dst"))
        path = os.fspath(arguments[0]) if _is_path(*arguments[:1]) else None
        if not isinstance(path, str):
            return plain(*arguments, **keywords)
        return redirected(plain, path, *arguments[1:], **keywords)

    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if plain in able:
            able.add(call)
    return call


def _is_path(first: object = None) -> bool:
    return isinstance(first, (str, os.PathLike))


class _Files:
    """What the redirected functions do; each gets the system's function as its first argument."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch

    def look(
        self, at: Callable[[str], str], plain: Any, path: str, *rest: Any, **words: Any
    ) -> Any:
        return plain(at(path), *rest, **words)

    def stat(self, plain: Any, path: str, **words: Any) -> Any:
        at = self._scratch.at if words.get("follow_symlinks", True) else self._scratch.link_at
        return plain(at(path), **words)

    def open(self, plain: Any, path: str, mode: str = "r", *rest: Any, **words: Any) -> Any:
        opener = words.get("opener") or rest[_POSITION_OF_OPENER : _POSITION_OF_OPENER + 1]
        if not opener and isinstance(mode, str):
            writes = bool(set(mode) & set("wax+"))
            path = self._opened(path, writes=writes, new="x" in mode, keep="w" not in mode)
        return plain(path, mode, *rest, **words)

    def open_descriptor(self, plain: Any, path: str, flags: int, *rest: Any, **words: Any) -> Any:
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
        # Without O_CREAT the version must be there to be opened.
        new, keep = bool(flags & os.O_EXCL), flags & os.O_TRUNC == 0 or flags & os.O_CREAT == 0
        return plain(self._opened(path, writes=writes, new=new, keep=keep), flags, *rest, **words)

    def _opened(self, path: str, *, writes: bool, new: bool, keep: bool) -> str:
        found = self._scratch.at(path)
        if writes and not (new and found == path):
            return self._scratch.for_writing(path, keep=keep)
        return found

    def truncate(self, plain: Any, path: str, length: int) -> None:
        plain(self._scratch.for_writing(path, keep=True), length)

    def set_times(self, plain: Any, path: str, *rest: Any, **words: Any) -> None:
        follows = words.get("follow_symlinks", True)
        found = self._scratch.at(path) if follows else self._scratch.link_at(path)
        place = os.path.realpath(found) if follows else found
        if not self._scratch.was_there(place):  # its times tell that it was
            plain(found, *rest, **words)
            self._scratch.note_new(place)

    def list(self, plain: Any, path: str) -> list[str]:
        removed, own = self._scratch.differences(path)
        return [*(name for name in plain(path) if name not in removed | own), *sorted(own)]

    def scan(self, plain: Any, path: str) -> Any:
        removed, own = self._scratch.differences(path)
        if not removed | own:
            return plain(path)
        entries = [entry for entry in plain(path) if entry.name not in removed | own]
        versions = plain(self._scratch.version_of(os.path.realpath(path))) if own else []
        return _Entries([*entries, *(entry for entry in versions if entry.name in own)])

    def make_folder(self, plain: Any, path: str, *rest: Any, **words: Any) -> None:
        if self._scratch.is_removed(path):
            self._scratch.unmark_removed(path)  # empty: its files are marked, too
        else:
            plain(path, *rest, **words)

    def remove_folder(self, plain: Any, path: str) -> None:
        removed, own = self._scratch.differences(path)
        if removed and not own and set(_directly(self._scratch, os.listdir, path)) <= removed:
            self._scratch.forget(path)  # the folder of versions that the script has removed
            self._scratch.mark_removed(path)
        else:
            plain(path)

    def remove(self, _plain: Any, path: str) -> None:
        self._scratch.remove(path)

    def remove_tree(self, plain: Any, path: str, *rest: Any, **words: Any) -> None:
        scratch = self._scratch
        found = [(folder, names) for folder, _, names in os.walk(path)]
        files = [os.path.join(folder, name) for folder, names in found for name in names]
        kept = any(scratch.was_there(file) for file in files)
        for file in files:
            if kept or scratch.link_at(file) != file:
                scratch.remove(file)
        scratch.forget(path)
        if kept:
            for folder, _ in found:
                scratch.mark_removed(folder)
        else:
            _directly(scratch, plain, path, *rest, **words)

    def move(self, plain: Any, source: str, target: Any, **words: Any) -> None:
        scratch, target = self._scratch, os.fspath(target)
        found = scratch.link_at(source)
        is_plain = found == source and scratch.link_at(target) == target
        if _directly(scratch, _is_folder, source) and found == source:
            self._move_folder(plain, source, target)
        elif is_plain and not scratch.was_there(source) and not scratch.was_there(target):
            plain(source, target, **words)
        else:
            self._move_to_version(plain, source, target)

    def _move_to_version(self, plain: Any, source: str, target: str) -> None:
        scratch = self._scratch
        found = scratch.link_at(source)
        with scratch.directly():
            os.lstat(found)  # raises if the script has none
            if os.path.isdir(target):
                plain(found, target)  # raises
            version = scratch.new_version(target)
            if found == source:
                shutil.copy2(found, version, follow_symlinks=False)
            else:
                os.replace(found, version)
            if os.path.lexists(source) and not scratch.is_removed(source):
                scratch.remove(source)

    def _move_folder(self, plain: Any, source: str, target: str) -> None:
        scratch = self._scratch
        folders = [(folder, names) for folder, _, names in os.walk(source)]
        files = [os.path.join(folder, name) for folder, names in folders for name in names]
        if not any(scratch.was_there(file) for file in files):
            versions = [file for file in files if scratch.link_at(file) != file]
            for file in versions:
                moved = scratch.new_version(os.path.join(target, os.path.relpath(file, source)))
                _directly(scratch, os.replace, scratch.link_at(file), moved)
            plain(source, target)
            return
        # Old files stay, so the script gets a folder of copies.
        for folder, _ in folders:
            os.makedirs(os.path.normpath(os.path.join(target, os.path.relpath(folder, source))))
        for file in files:
            self.move(plain, file, os.path.join(target, os.path.relpath(file, source)))
        for folder, _ in folders:
            scratch.mark_removed(folder)

    def copy(self, plain: Any, source: str, target: Any, **words: Any) -> Any:
        if self._scratch.at(source) == source:
            return plain(source, target, **words)
        # A copy of a checkpoint without values is not put beside real files either.
        plain(source, self._scratch.for_tensors(os.fspath(target)), **words)
        return target

    def link_symbolically(self, plain: Any, source: str, target: Any, *rest: Any) -> None:
        plain(source, self._free_name(os.fspath(target)), *rest)

    def link(self, plain: Any, source: str, target: Any, **words: Any) -> None:
        target, found = os.fspath(target), self._scratch.at(source)
        place = self._free_name(target) if found == source else self._scratch.new_version(target)
        plain(found, place, **words)

    def _free_name(self, path: str) -> str:
        return self._scratch.new_version(path) if self._scratch.is_removed(path) else path


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _directly(scratch: Scratch, function: Any, *arguments: Any, **keywords: Any) -> Any:
    with scratch.directly():
        return function(*arguments, **keywords)


class _Entries:
    """Entries of a folder, as `os.scandir` returns them."""

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
