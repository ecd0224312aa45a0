"""Redirection of saved tensors to the scratch folder in a shape-only rehearsal.

Even new files are redirected: a file without values must not look like a checkpoint. The functions
that load tensors find the redirected files, including libraries that open files in C++ or Rust:

- a function that writes to a path gets the path of the script's version of the file;
- an open file that a function writes to is redirected to the version;
- a function that reads a path gets the path of the version, if there is one.
"""

from __future__ import annotations

import functools
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .import_watch import ImportWatch
from .rebinding import replace_in_torch
from .scratch import Scratch

# Module, function, and the position and keyword of the file among the arguments.
_WRITERS = (
    ("torch.serialization", "save", 1, "f"),
    ("torch._C", "PyTorchFileWriter.__init__", 1, ""),
    ("torch.jit", "save", 1, "f"),
    ("torch.jit", "RecursiveScriptModule.save", 1, "f"),
    ("numpy", "save", 0, "file"),
    ("numpy", "savez", 0, "file"),
    ("numpy", "savez_compressed", 0, "file"),
    ("safetensors", "serialize_file", 1, "filename"),
    ("safetensors.torch", "serialize_file", 1, "filename"),
    ("safetensors.numpy", "serialize_file", 1, "filename"),
)
_READERS = (
    ("torch.serialization", "load", 0, "f"),
    ("torch._C", "PyTorchFileReader.__init__", 1, ""),
    ("torch.jit", "load", 0, "f"),
    ("safetensors", "safe_open", 0, "filename"),
    ("safetensors.torch", "safe_open", 0, "filename"),
    ("safetensors.numpy", "safe_open", 0, "filename"),
)
_SUFFIXES = {"save": ".npy", "savez": ".npz", "savez_compressed": ".npz"}


def redirect(scratch: Scratch) -> None:
    """Redirect the tensors that this process saves to `scratch`, for the rest of its life."""
    for module, function, position, keyword in _WRITERS:
        suffix = _SUFFIXES.get(function, "") if module == "numpy" else ""
        argument = _Argument(position, keyword)
        _replace(module, function, functools.partial(_writer, scratch, argument, suffix))
    for module, function, position, keyword in _READERS:
        argument = _Argument(position, keyword)
        _replace(module, function, functools.partial(_reader, scratch, argument))
    checkpoints = "torch.distributed.checkpoint.filesystem"
    _replace(checkpoints, "FileSystem.create_stream", functools.partial(_stream, scratch))
    pickler: Any = pickle
    pickler.dump = _dump_to(scratch)


@dataclass(frozen=True)
class _Argument:
    """The position and the keyword of a function's file argument."""

    position: int
    keyword: str

    def of(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        if len(arguments) > self.position:
            return arguments[self.position]
        return keywords.get(self.keyword)

    def replaced(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any], file: Any
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        if len(arguments) > self.position:
            return (*arguments[: self.position], file, *arguments[self.position + 1 :]), keywords
        return arguments, {**keywords, self.keyword: file}


def _writer(scratch: Scratch, argument: _Argument, suffix: str, original: Any) -> Any:
    @functools.wraps(original)
    def write(*arguments: Any, **keywords: Any) -> Any:
        file = argument.of(arguments, keywords)
        path = _path_of(file)
        if path is None:
            scratch.redirect_open_file(file)
            return original(*arguments, **keywords)
        path = path if path.endswith(suffix) else path + suffix
        version = scratch.for_tensors(path)
        is_new = version != path and not Path(version).exists()
        arguments, keywords = argument.replaced(arguments, keywords, version)  # type: ignore[assignment]
        try:
            return original(*arguments, **keywords)
        except BaseException:
            if is_new:  # remove the incomplete file
                with suppress(OSError):
                    Path(version).unlink()
            raise

    return write


def _reader(scratch: Scratch, argument: _Argument, original: Any) -> Any:
    @functools.wraps(original)
    def read(*arguments: Any, **keywords: Any) -> Any:
        path = _path_of(argument.of(arguments, keywords))
        if path is not None and scratch.find(path) != path:
            arguments, keywords = argument.replaced(arguments, keywords, scratch.find(path))  # type: ignore[assignment]
        return original(*arguments, **keywords)

    return read


def _stream(scratch: Scratch, original: Any) -> Any:
    """Return the method with which distributed checkpoints open each of their files."""

    @functools.wraps(original)
    def create_stream(self: Any, path: str | os.PathLike[str], mode: str) -> Any:
        return original(self, scratch.for_tensors(os.fspath(path)) if "w" in mode else path, mode)

    return create_stream


def _dump_to(scratch: Scratch) -> Any:
    """Return a `pickle.dump` that redirects its file when it first meets a tensor or an array."""

    def dump(obj: Any, file: Any, *arguments: Any, **keywords: Any) -> None:
        _Pickler(scratch, file, *arguments, **keywords).dump(obj)

    return functools.wraps(pickle.dump)(dump)


class _Pickler(pickle.Pickler):
    def __init__(self, scratch: Scratch, file: Any, *arguments: Any, **keywords: Any) -> None:
        super().__init__(file, *arguments, **keywords)
        self._redirect_file = functools.partial(scratch.redirect_open_file, file)

    def reducer_override(self, obj: Any) -> Any:
        numpy = sys.modules.get("numpy")
        if isinstance(obj, (torch.Tensor, torch.UntypedStorage)) or (
            numpy is not None and isinstance(obj, numpy.ndarray)
        ):
            self._redirect_file()
        return NotImplemented


def _path_of(file: object) -> str | None:
    if isinstance(file, (str, os.PathLike)):
        path = os.fspath(file)
        return path if isinstance(path, str) else None
    return None


def _replace(module: str, function: str, wrap: Callable[[Any], Any]) -> None:
    """Replace a module's function with `wrap(function)`, now or once the module is imported."""

    def replace() -> None:
        *owners, name = function.split(".")
        owner: Any = sys.modules[module]
        for attribute in owners:
            owner = getattr(owner, attribute)
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, wrap(original))
            replace_in_torch({name: original}, {name: getattr(owner, name)})

    def load_and_replace(load: Callable[[], None]) -> None:
        load()
        replace()

    if module in sys.modules:
        replace()
    else:
        sys.meta_path.insert(0, ImportWatch(module, load_and_replace))
