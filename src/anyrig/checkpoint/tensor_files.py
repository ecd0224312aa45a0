"""The safetensors files of a module or an optimizer, written by one rank or by all.

`tensor_file_names.py` shows the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from torch import Tensor

from .division import Division, Part
from .region import whole_region
from .safetensors_writer import TensorSource, encode_safetensors, in_file_order, lazy_source
from .tensor_file_names import OWN_KEYS, SHARDING_KEY, START_KEY, names_of_shards

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Hugging Face's libraries split larger models, too.
LARGEST_FILE_BYTES = 5 * 10**9


@dataclass(frozen=True)
class Writing:
    """How this rank takes part in writing tensors.

    Attributes:
        rank: the rank of this process.
        to_host: returns a tensor in the host's memory. Without a division, it gathers a tensor in
            shards, which is a collective.
        division: what each rank writes; None if rank 0 writes everything, and the others only call
            `to_host` for the same tensors.
        replicated: the names of tensors that are equal on all ranks, by stem.
    """

    rank: int
    to_host: Callable[[Tensor], Tensor]
    division: Division | None = None
    replicated: Mapping[str, Collection[str]] = field(default_factory=dict)


def contents_of(
    stem: str, tensors: Mapping[str, Tensor], writing: Writing
) -> dict[str, Iterable[Buffer]]:
    """Return the files that this rank writes: their names, and their content in parts.

    A tensor that has several names is written once, as `safetensors.torch.save_model` does, unless
    one is a key of the header that means something else. Read the contents in their order:
    `to_host` is called for each tensor once, and may be a collective.

    Args:
        stem: the beginning of the files' names.
        tensors: the tensors, by name.
        writing: how this rank takes part.
    """
    first_name: dict[int, str] = {}
    aliases: dict[str, str] = {}
    firsts: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        first = first_name.setdefault(id(tensor), name)
        if first != name and name not in OWN_KEYS:
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
    starts = {name: {START_KEY: part.region.start} for name, part in parts.items()}
    metadata = {"format": "pt", SHARDING_KEY: json.dumps(starts)}
    if writing.rank == 0:
        metadata |= aliases
    (file,) = names_of_shards(stem, division.count)[writing.rank : writing.rank + 1]
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
