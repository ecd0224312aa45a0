"""Read the ``.metadata`` of a folder of torch.distributed.checkpoint, which is a pickle.

Reading it makes no instance of PyTorch's classes, and calls none of its functions. Each allowed
name stands for a class of this file that only keeps what the pickle gives it, or for ``tuple``,
``int`` and ``str``. Every other name is refused. What was kept is then checked field by field.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...errors import CheckpointDamagedError, UnsafeFileError
from ...regular_file import UnfitFileError, read_regular
from .pickle_scan import refuse_names, scan_pickle

Offsets = tuple[int, ...]
_MOST_PATH_PARTS = 100
_MOST_BYTES = 2**30  # about 100 bytes for each chunk of a tensor
_REFUSED_OPCODES = {"INST", "OBJ", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "PUT"}


class _Kept:
    """A stand-in for a class of PyTorch; keeps the state that a pickle gives to an instance."""

    def __init__(self, *parts: Any) -> None:
        self.state: Any = parts

    def __new__(cls, *parts: Any) -> _Kept:
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Metadata(_Kept):
    pass


class _TensorFacts(_Kept):
    pass


class _BytesFacts(_Kept):
    pass


class _Properties(_Kept):
    pass


class _Chunk(_Kept):
    pass


class _Index(_Kept):
    pass


class _Storage(_Kept):
    pass


_MODULE = "torch.distributed.checkpoint.metadata"
_STANDS_FOR: Mapping[str, type] = {
    f"{_MODULE}.Metadata": _Metadata,
    f"{_MODULE}.TensorStorageMetadata": _TensorFacts,
    f"{_MODULE}.BytesStorageMetadata": _BytesFacts,
    f"{_MODULE}.TensorProperties": _Properties,
    f"{_MODULE}.ChunkStorageMetadata": _Chunk,
    f"{_MODULE}.MetadataIndex": _Index,
    f"{_MODULE}.StorageMeta": _Kept,
    f"{_MODULE}._MEM_FORMAT_ENCODING": int,
    "torch.distributed.checkpoint.filesystem._StorageInfo": _Storage,
    "torch.serialization._get_layout": str,
    "torch.Size": tuple,
    "collections.OrderedDict": dict,
    "builtins.getattr": _Kept,  # how some versions of Python pickle an enum member
    **{
        f"{module}.{name}": _Kept
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
    },
}


@dataclass(frozen=True)
class StoredRange:
    """Where the bytes of a chunk or a value lie: in a file of the folder."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the folder: its type, its shape, and (offsets, sizes) of its chunks."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[tuple[Offsets, tuple[int, ...]], ...]


@dataclass(frozen=True)
class FolderMetadata:
    """What a folder of torch.distributed.checkpoint holds.

    Attributes:
        tensors: each tensor by its full name.
        values: full names of the other values.
        ranges: where each (full name, offsets of the chunk) lies; the offsets of values are None.
        paths: the keys that lead to each full name in the nested state that was saved.
    """

    tensors: Mapping[str, StoredTensor]
    values: Sequence[str]
    ranges: Mapping[tuple[str, Offsets | None], StoredRange]
    paths: Mapping[str, tuple[str | int, ...]]


def read_metadata(path: Path) -> FolderMetadata:
    """Return the checked contents of a ``.metadata`` file.

    Raises:
        UnsafeFileError: the pickle imports a name that such a file does not need.
        CheckpointDamagedError: the file is truncated or altered.
    """
    try:
        content = read_regular(path, _MOST_BYTES, follow_links=True)
    except UnfitFileError as error:
        raise _damaged(path, f"{error.strerror}") from None
    scan = scan_pickle(io.BytesIO(content), str(path))
    if refused := [name for name in scan.names if _stand_in(name) is None]:
        raise refuse_names(refused, str(path), in_folder=True)
    if odd := scan.opcodes & _REFUSED_OPCODES:
        raise UnsafeFileError(
            f"{path} is not read: its pickle uses the instructions {', '.join(sorted(odd))}, "
            "which torch.distributed.checkpoint never writes. Nothing was run"
        )
    if scan.largest_memo > len(content):  # Python would allocate a table of that length
        raise _damaged(path, f"it stores a value at index {scan.largest_memo}")
    try:
        found = _Unpickler(content, str(path)).load()
    except UnsafeFileError:
        raise
    except Exception as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from None
    try:
        return _check(found)
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"{error}") from None


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, where: str) -> None:
        super().__init__(io.BytesIO(content))
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        stand_in = _stand_in(f"{module}.{name}")
        if stand_in is None:
            raise refuse_names([f"{module}.{name}"], self._where, in_folder=True)
        return stand_in


def _stand_in(name: str) -> Any:
    """Return what stands for an allowed name, or None."""
    module, _, last = name.rpartition(".")
    if module == "torch" and isinstance(dtype := torch.__dict__.get(last), torch.dtype):
        return dtype
    return _STANDS_FOR.get(name)


def _check(found: Any) -> FolderMetadata:
    facts = _fields(found, _Metadata)
    tensors: dict[str, StoredTensor] = {}
    values: list[str] = []
    for name, each in _of_kind(facts["state_dict_metadata"], dict).items():
        if isinstance(each, _BytesFacts):
            values.append(_of_kind(name, str))
        else:
            tensors[_of_kind(name, str)] = _check_tensor(each)
    ranges: dict[tuple[str, Offsets | None], StoredRange] = {}
    for index, each in _of_kind(facts["storage_data"], dict).items():
        key, stored = _fields(index, _Index), _fields(each, _Storage)
        offset = key.get("offset")
        where = (_of_kind(key["fqn"], str), None if offset is None else _counts(offset))
        if where in ranges:
            raise ValueError(f"it has {where[0]!r} at {where[1]} twice")
        if stored.get("transform_descriptors"):
            raise ValueError(f"{where[0]!r} is compressed by an extension")
        start, length = _counts((stored["offset"], stored["length"]))
        ranges[where] = StoredRange(_of_kind(stored["relative_path"], str), start, length)
    planned = facts.get("planner_data")
    paths = {
        name: _check_path(each)
        for name, each in (planned.items() if isinstance(planned, dict) else ())
        if name in tensors or name in values
    }
    return FolderMetadata(tensors, tuple(values), ranges, paths)


def _check_tensor(facts: Any) -> StoredTensor:
    fields = _fields(facts, _TensorFacts)
    properties = fields["properties"]
    # PyTorch writes the properties as a tuple whose first item is the element type.
    state = properties.state if isinstance(properties, _Properties) else None
    if not isinstance(state, tuple) or not state or not isinstance(state[0], torch.dtype):
        raise TypeError("a tensor has no element type")
    chunks = []
    for each in _of_kind(fields["chunks"], list):
        chunk = _fields(each, _Chunk)
        chunks.append((_counts(chunk["offsets"]), _counts(chunk["sizes"])))
    shape = _counts(fields["size"])
    if math.prod(max(1, length) for length in shape) * state[0].itemsize >= 2**63:
        raise ValueError(f"a tensor has the shape {shape}")
    return StoredTensor(state[0], shape, tuple(chunks))


def _check_path(parts: Any) -> tuple[str | int, ...]:
    if not isinstance(parts, tuple) or not 0 < len(parts) <= _MOST_PATH_PARTS:
        raise TypeError(f"the path of a value is {parts!r:.80}")
    if not all(type(part) in (str, int) for part in parts):
        raise TypeError(f"the path of a value is {parts!r:.80}")
    return parts


def _fields(value: Any, kind: type[_Kept]) -> dict[str, Any]:
    """Return the state of an instance that stands for a dataclass."""
    if type(value) is not kind:
        raise TypeError(f"it has a {type(value).__name__} in place of {kind.__name__[1:]}")
    fields: dict[str, Any] = _of_kind(value.state, dict)
    return fields


def _of_kind(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"it has a {type(value).__name__} in place of a {kind.__name__}")
    return value


def _counts(values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple) or not all(
        type(value) is int and 0 <= value < 2**63 for value in values
    ):
        raise TypeError(f"it has {values!r:.80} in place of counts")
    return values


def _damaged(path: Path, problem: str) -> CheckpointDamagedError:
    return CheckpointDamagedError(
        f"{path} is damaged: {problem}. Copy the checkpoint's folder again"
    )
