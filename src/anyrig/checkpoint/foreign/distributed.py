"""Read a folder that torch.distributed.checkpoint wrote.

::

    .metadata        a pickle: the shapes of all tensors, and where each chunk lies
    __0_0.distcp     chunks, each of them a torch file, one after the other
    __1_0.distcp     … of rank 1
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointDamagedError
from ..region import Region, find_bad_region
from .contents import divide_contents
from .file_part import open_part
from .inside import find_inside
from .metadata_pickle import FolderMetadata, Offsets, StoredRange, StoredTensor, read_metadata
from .torch_file import read_torch_stream

METADATA_NAME = ".metadata"


def read_distributed(folder: Path) -> dict[str | int, Any]:
    """Return the nested state that was saved, with whole tensors.

    Raises:
        UnsafeFileError: a pickle would run code, or a chunk leads out of the folder.
        CheckpointDamagedError: a file is truncated, altered or missing.
    """
    metadata = read_folder_metadata(folder)
    found: dict[str, Any] = {
        name: read_stored_tensor(folder, metadata, name) for name in metadata.tensors
    }
    for name in metadata.values:
        found[name] = _read_part(folder, metadata, name, None)
    return _nest(found, metadata.paths)


def read_folder_metadata(folder: Path) -> FolderMetadata:
    """Return what a folder holds, without its tensors and values."""
    return read_metadata(find_inside(folder, METADATA_NAME, named_by=str(folder)))


def files_of_folder(folder: Path) -> set[str]:
    """Return the names of the files that hold a folder's metadata, tensors and values."""
    return {METADATA_NAME, *(each.file for each in read_folder_metadata(folder).ranges.values())}


def find_model_names(folder: Path, metadata: FolderMetadata) -> dict[str, str]:
    """Return the full name of each tensor of the model, by its name in the model's state dict."""
    outline: dict[str, Any] = dict.fromkeys(metadata.values)
    for name, stored in metadata.tensors.items():
        outline[name] = torch.empty(stored.shape, dtype=stored.dtype, device="meta")
    contents = divide_contents(_nest(outline, metadata.paths), str(folder))
    full_names = {metadata.paths.get(name, (name,)): name for name in metadata.tensors}
    if contents.key is None:
        return {name: full_names[(name,)] for name in contents.tensors}
    return {name: full_names[contents.key, name] for name in contents.tensors}


def read_stored_tensor(folder: Path, metadata: FolderMetadata, name: str) -> Tensor:
    """Return the tensor with a full name, joined from its chunks."""
    return _join_chunks(folder, metadata, name, metadata.tensors[name])


def _join_chunks(folder: Path, metadata: FolderMetadata, name: str, stored: StoredTensor) -> Tensor:
    """Return one tensor, joined from its chunks."""
    problem = find_bad_region(stored.shape, [Region(*chunk) for chunk in stored.chunks])
    if problem is not None:
        raise CheckpointDamagedError(f"{folder} is damaged: {name!r} {problem}")
    _check_stored_bytes(folder, metadata, name, stored)
    whole: Tensor | None = None
    for offsets, sizes in stored.chunks:
        where = f"{folder}: {name}"
        chunk = _read_part(folder, metadata, name, offsets)
        if (
            not isinstance(chunk, Tensor)
            or chunk.dtype != stored.dtype
            or tuple(chunk.shape) != sizes
        ):
            kind = (
                f"{chunk.dtype} {tuple(chunk.shape)}" if isinstance(chunk, Tensor) else type(chunk)
            )
            raise CheckpointDamagedError(
                f"{where} is damaged: its chunk at {offsets} is {kind}, not {stored.dtype} {sizes}"
            )
        if sizes == stored.shape:
            return chunk.detach()
        if whole is None:
            whole = torch.empty(stored.shape, dtype=stored.dtype)
        region = tuple(
            slice(start, start + size) for start, size in zip(offsets, sizes, strict=True)
        )
        whole[region] = chunk.detach()
    return torch.empty(stored.shape, dtype=stored.dtype) if whole is None else whole


def _check_stored_bytes(
    folder: Path, metadata: FolderMetadata, name: str, stored: StoredTensor
) -> None:
    """Raise if a tensor is larger than its chunks' bytes, before memory is allocated for it."""
    stored_bytes = sum(
        _find_range(folder, metadata, name, offsets).length for offsets, _ in stored.chunks
    )
    needed_bytes = math.prod(stored.shape) * stored.dtype.itemsize
    if needed_bytes > stored_bytes:
        raise CheckpointDamagedError(
            f"{folder} is damaged: {name!r} needs {needed_bytes} bytes, but {stored_bytes} are "
            "stored"
        )


def _read_part(folder: Path, metadata: FolderMetadata, name: str, offsets: Offsets | None) -> Any:
    """Return the tensor or value of one chunk."""
    stored = _find_range(folder, metadata, name, offsets)
    path = find_inside(folder, stored.file, named_by=str(folder / METADATA_NAME))
    size_bytes = path.stat().st_size
    if stored.offset + stored.length > size_bytes:
        raise CheckpointDamagedError(
            f"{path} is truncated: {name!r} ends at byte {stored.offset + stored.length}, but the "
            f"file has {size_bytes} bytes. Copy the checkpoint's folder again"
        )
    with open_part(path, stored.offset, stored.length) as part:
        return read_torch_stream(part, f"{path}: {name}")


def _find_range(
    folder: Path, metadata: FolderMetadata, name: str, offsets: Offsets | None
) -> StoredRange:
    """Return where one chunk or value lies."""
    stored = metadata.ranges.get((name, offsets))
    if stored is None:
        at = "" if offsets is None else f" at {offsets}"
        raise CheckpointDamagedError(
            f"{folder} is damaged: its {METADATA_NAME} does not say where {name!r}{at} lies"
        )
    return stored


def _nest(
    found: Mapping[str, Any], paths: Mapping[str, tuple[str | int, ...]]
) -> dict[str | int, Any]:
    """Return the values under the keys that lead to them; without keys, under their full names."""
    nested: dict[str | int, Any] = {}
    for name, value in found.items():
        *parents, last = paths.get(name, (name,))
        place = nested
        for part in parents:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                raise CheckpointDamagedError(f"{name!r} lies below a value that is not nested")
            place = inner
        place[last] = value
    return {key: _with_lists(value) for key, value in nested.items()}


def _with_lists(value: Any) -> Any:
    """Return nested values in which dicts with the keys 0, 1, 2, … are lists again."""
    if not isinstance(value, dict):
        return value
    inner = {key: _with_lists(each) for key, each in value.items()}
    is_list = bool(inner) and all(type(key) is int for key in inner)
    if is_list and sorted(inner) == [*range(len(inner))]:
        return [inner[number] for number in range(len(inner))]
    return inner
