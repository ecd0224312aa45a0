"""The safetensors files of a module or an optimizer: written by one rank or by all, and read.

::

    model.safetensors                          one writer
    model-00001-of-00003.safetensors           large models, or whole tensors divided among ranks,
    model.safetensors.index.json               with Hugging Face's index
    model.shard.00001-of-00004.safetensors     tensors in shards: the parts that rank 0 has, each
                                               under the name of its tensor

A file of shards says where each part begins in its tensor, as the `HuggingFaceStorageWriter` of
torch.distributed.checkpoint does, whose reader takes these files, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import CheckpointDamagedError
from .division import Division, Part
from .foreign.safetensors_file import read_safetensors
from .region import Region, find_bad_region, whole_region
from .safetensors_writer import TensorSource, encode_safetensors, in_file_order, lazy_source
from .strict_json import read_strict_json
from .tensor_in_parts import SavedTensor, TensorInParts

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Hugging Face's libraries split larger models, too.
LARGEST_FILE_BYTES = 5 * 10**9

# The names that torch.distributed.checkpoint uses in the headers of safetensors files.
_SHARDING_KEY, _START_KEY = "DCP_SHARDING_INFO", "saved_offsets"
_SHARD = ".shard."
_FILE = re.compile(r"(.+?)(-\d{5}-of-\d{5}|\.shard\.\d{5}-of-\d{5})?\.safetensors")


@dataclass(frozen=True)
class Writing:
    """How this rank takes part in writing tensors.

    Attributes:
        rank: of this process.
        to_host: returns a tensor in the host's memory. Without a division, a tensor in shards
            becomes a whole one, which is a collective.
        division: what each rank writes; None if rank 0 writes everything, and the others only call
            `to_host` for the same tensors.
        replicated: by stem: the names of tensors that are equal on all ranks.
    """

    rank: int
    to_host: Callable[[Tensor], Tensor]
    division: Division | None = None
    replicated: Mapping[str, Collection[str]] = field(default_factory=dict)


def contents_of(
    stem: str, tensors: Mapping[str, Tensor], writing: Writing
) -> dict[str, Iterable[Buffer]]:
    """Return the files that this rank writes: their names, and their content in parts.

    Tensors that are one object are written once, as by `safetensors.torch.save_model`. Read the
    contents in their order: `to_host` is called for each tensor once, and may be a collective.

    Args:
        stem: the beginning of the files' names.
        tensors: by name.
        writing: how this rank takes part.
    """
    first_name: dict[int, str] = {}
    aliases: dict[str, str] = {}
    firsts: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        first = first_name.setdefault(id(tensor), name)
        if first != name:
            aliases[name] = first
        else:
            firsts[name] = tensor
    division = writing.division
    if division is None:
        return _whole_files(stem, firsts, aliases, dict.fromkeys(firsts, 0), writing)
    writers = division.writers(firsts, writing.replicated.get(stem, ()))
    whole = {name: rank for name, rank in writers.items() if rank is not None}
    if len(whole) == len(writers):
        return _whole_files(stem, firsts, aliases, whole, writing)
    parts = division.own_parts(firsts, writers)
    starts = {name: {_START_KEY: part.region.start} for name, part in parts.items()}
    metadata = {"format": "pt", _SHARDING_KEY: json.dumps(starts)}
    if writing.rank == 0:
        metadata |= aliases
    (file,) = _names_of_shards(stem, division.count)[writing.rank : writing.rank + 1]
    return {file: encode_safetensors(_sources(parts, writing.to_host), metadata)}


def _whole_files(
    stem: str,
    tensors: Mapping[str, Tensor],
    aliases: Mapping[str, str],
    writers: Mapping[str, int],
    writing: Writing,
) -> dict[str, Iterable[Buffer]]:
    """Return this rank's files of whole tensors."""
    files: list[tuple[int, dict[str, Part]]] = []
    bytes_ = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: writers[item[0]]):  # stable
        size = prod(tensor.shape) * tensor.element_size()
        is_full = bool(files) and bytes_ + size > LARGEST_FILE_BYTES and bool(files[-1][1])
        if not files or files[-1][0] != writers[name] or is_full:
            files.append((writers[name], {}))
            bytes_ = 0
        files[-1][1][name] = Part(tensor, whole_region(tensor.shape))
        bytes_ += size
    files = files or [(0, {})]
    names = [
        f"{stem}-{index:05d}-of-{len(files):05d}.safetensors" for index in range(1, len(files) + 1)
    ]
    if len(files) == 1:
        names = [f"{stem}.safetensors"]
    contents: dict[str, Iterable[Buffer]] = {}
    for file, (rank, parts) in zip(names, files, strict=True):
        here = {alias: first for alias, first in aliases.items() if first in parts}
        sources = _sources(parts, writing.to_host)
        if writing.rank == rank:
            contents[file] = encode_safetensors(sources, {"format": "pt", **here})
        elif writing.division is None:
            contents[file] = _take_part(sources)
    if len(files) > 1 and writing.rank == 0:
        file_of = {name: file for file, (_, its) in zip(names, files, strict=True) for name in its}
        total = sum(each.nbytes for each in tensors.values())
        index = {
            "metadata": {"total_size": total},
            "weight_map": file_of | {alias: file_of[first] for alias, first in aliases.items()},
        }
        contents[f"{stem}.safetensors.index.json"] = [json.dumps(index, indent=1).encode()]
    return contents


def _sources(
    parts: Mapping[str, Part], to_host: Callable[[Tensor], Tensor]
) -> Iterator[TensorSource]:
    for name, part in parts.items():

        def read(tensor: Tensor = part.tensor) -> Tensor:
            return to_host(tensor)

        yield lazy_source(name, part.tensor.dtype, part.region.sizes, read)


def _take_part(sources: Iterable[TensorSource]) -> Iterator[Buffer]:
    """Read tensors in the order in which another rank writes them, and yield nothing."""
    for each in in_file_order(sources):
        for _ in each.read():
            pass
    yield from ()


def role_of(file: str) -> str | None:
    """Return what the tensors of a file are: ``"model"``, ``"optimizer"``; None for other files.

    ``model-00001-of-00002.safetensors`` is a part of the model.
    """
    match = _FILE.fullmatch(file)
    return match[1] if match else None


def is_in_shards(stem: str, files: Iterable[str]) -> bool:
    """Return whether tensors lie in files of shards, given the names of a checkpoint's files."""
    return any(role_of(file) == stem and _SHARD in file for file in files)


def read_tensors(folder: Path, stem: str, files: Iterable[str]) -> dict[str, SavedTensor]:
    """Return the tensors that `contents_of` has written, mapped from their files.

    Args:
        folder: of the checkpoint.
        stem: the beginning of the files' names.
        files: the names of all files of the checkpoint.

    Raises:
        CheckpointDamagedError: a file is missing or does not have the format.
    """
    own = sorted(file for file in files if role_of(file) == stem)
    if is_in_shards(stem, own):
        return _join_shards(folder, stem, own)
    found: dict[str, SavedTensor] = {}
    for file in own or [f"{stem}.safetensors"]:
        found |= _read_file(folder / file)[0]
    return found


def _join_shards(folder: Path, stem: str, files: list[str]) -> dict[str, SavedTensor]:
    expected = _names_of_shards(stem, int(files[0].removesuffix(".safetensors")[-5:]))
    if files != expected:
        missing = sorted({*expected} - {*files}) or sorted({*files} - {*expected})
        path = folder / missing[0]
        raise CheckpointDamagedError(f"{path} does not fit the {len(files)} files of shards", path)
    parts: dict[str, list[tuple[Region, Tensor]]] = {}
    aliases: dict[str, str] = {}
    for file in files:
        tensors, metadata = _read_file(folder / file)
        starts = _read_starts(folder / file, metadata)
        for name, tensor in tensors.items():
            if name in starts:
                region = Region(starts[name], tuple(tensor.shape))
                parts.setdefault(name, []).append((region, tensor))
        aliases |= {name: first for name, first in metadata.items() if name not in _OWN_KEYS}
    found: dict[str, SavedTensor] = {}
    for name, its in parts.items():
        found[name] = _join(folder / files[0], name, its)
    for alias, first in aliases.items():
        if first in found:
            found.setdefault(alias, found[first])
    return found


_OWN_KEYS = ("format", _SHARDING_KEY)


def _join(path: Path, name: str, parts: list[tuple[Region, Tensor]]) -> SavedTensor:
    regions = [region for region, _ in parts]
    stops = [
        [start + size for start, size in zip(region.start, region.sizes, strict=False)]
        for region in regions
    ]
    is_regular = len({len(stop) for stop in stops}) == 1
    shape = torch.Size(map(max, *stops, stops[0])) if is_regular else torch.Size()
    problem = find_bad_region(shape, regions)
    dtypes = {tensor.dtype for _, tensor in parts}
    if problem is None and len(dtypes) > 1:
        problem = f"has parts of {len(dtypes)} element types"
    if problem is not None:
        raise CheckpointDamagedError(
            f"the files of shards beside {path} do not fit each other: {name!r} {problem}. Load "
            "another checkpoint of the series",
            path,
        )
    if len(parts) == 1:
        return parts[0][1]
    return TensorInParts(shape, parts[0][1].dtype, parts)


def _read_starts(path: Path, metadata: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    try:
        found: Any = read_strict_json(metadata[_SHARDING_KEY].encode())
        starts = {str(name): tuple(each[_START_KEY]) for name, each in found.items()}
        if not all(type(each) is int and each >= 0 for start in starts.values() for each in start):
            raise ValueError("a start is not a number of elements")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamagedError(
            f"{path} does not say where its parts belong: {error!r}", path
        ) from None
    return starts


def _read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        # The library makes tensors on the default device, which the program may have changed.
        with torch.device("cpu"):
            return read_safetensors(path)
    except CheckpointDamagedError as error:
        raise CheckpointDamagedError(str(error), path) from None
    except OSError as error:
        raise CheckpointDamagedError(
            f"{path} cannot be read as safetensors: {error.strerror or error}", path
        ) from None


def _names_of_shards(stem: str, count: int) -> list[str]:
    return [
        f"{stem}{_SHARD}{index:05d}-of-{count:05d}.safetensors" for index in range(1, count + 1)
    ]
