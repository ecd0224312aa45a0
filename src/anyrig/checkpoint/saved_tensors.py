"""Read the safetensors files that `tensor_files.py` has written, and join tensors in shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointDamagedError
from .foreign.safetensors_file import read_safetensors
from .region import Region, find_bad_region
from .strict_json import read_strict_json
from .tensor_file_names import (
    OWN_KEYS,
    SHARDING_KEY,
    START_KEY,
    is_in_shards,
    names_of_shards,
    role_of,
)
from .tensor_in_parts import SavedTensor, TensorInParts


def read_tensors(folder: Path, stem: str, files: Iterable[str]) -> dict[str, SavedTensor]:
    """Return the tensors that `contents_of` has written, mapped from their files.

    Args:
        folder: the folder of the checkpoint.
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
    expected = names_of_shards(stem, int(files[0].removesuffix(".safetensors")[-5:]))
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
        aliases |= {name: first for name, first in metadata.items() if name not in OWN_KEYS}
    found: dict[str, SavedTensor] = {}
    for name, its in parts.items():
        found[name] = _join(folder / files[0], name, its)
    for alias, first in aliases.items():
        if first in found:
            found.setdefault(alias, found[first])
    return found


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
            f"the files of shards next to {path} do not match: {name!r} {problem}. Load "
            "another checkpoint of the series",
            path,
        )
    if len(parts) == 1:
        return parts[0][1]
    return TensorInParts(shape, parts[0][1].dtype, parts)


def _read_starts(path: Path, metadata: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    try:
        found: Any = read_strict_json(metadata[SHARDING_KEY].encode())
        starts = {str(name): tuple(each[START_KEY]) for name, each in found.items()}
        if not all(type(each) is int and each >= 0 for start in starts.values() for each in start):
            raise ValueError("a start is not a whole number from 0 up")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamagedError(
            f"{path} does not say where its parts belong: {error!r}", path
        ) from None
    return starts


def _read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        # The library creates tensors on the default device, which the program may have changed.
        with torch.device("cpu"):
            return read_safetensors(path)
    except CheckpointDamagedError as error:
        raise CheckpointDamagedError(str(error), path) from None
    except OSError as error:
        raise CheckpointDamagedError(
            f"{path} cannot be read as safetensors: {error.strerror or error}", path
        ) from None
