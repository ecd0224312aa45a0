"""Read the index of a model in several files, in Hugging Face's format.

::

    {"metadata": {"total_size": 1024}, "weight_map": {"layer.0.weight": "model-00001-of-00002…"}}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...errors import CheckpointDamagedError
from ...regular_file import UnfitFileError, read_regular
from ..strict_json import read_strict_json
from .inside import find_inside

_MOST_INDEX_BYTES = 100_000_000
Value = TypeVar("Value")


@dataclass(frozen=True)
class ShardIndex:
    """Which file holds each tensor.

    Attributes:
        path: the index.
        names_of_file: the tensors' names by the file that holds them; each file is regular and in
            the folder of the index.
    """

    path: Path
    names_of_file: Mapping[Path, tuple[str, ...]]


def read_index(path: Path) -> ShardIndex:
    """Return the checked index of a folder.

    Raises:
        CheckpointDamagedError: the index is not valid, or names a file that is not there.
        UnsafeFileError: the index names a file outside its folder.
    """
    try:
        index = read_strict_json(read_regular(path, _MOST_INDEX_BYTES, follow_links=True))
        if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
            raise ValueError("it has no weight_map")
    except (ValueError, UnfitFileError) as error:
        problem = error.strerror if isinstance(error, UnfitFileError) else error
        raise CheckpointDamagedError(f"{path} is not a valid index: {problem}") from None
    names: dict[str, list[str]] = {}
    for name, file_name in index["weight_map"].items():
        names.setdefault(_check_text(path, file_name), []).append(name)
    if not names:
        raise CheckpointDamagedError(f"{path} is not a valid index: its weight_map is empty")
    return ShardIndex(
        path,
        {
            find_inside(path.parent, file_name, named_by=str(path)): tuple(listed)
            for file_name, listed in names.items()
        },
    )


def read_shards(index: ShardIndex, read: Callable[[Path], Mapping[str, Value]]) -> dict[str, Value]:
    """Return the tensors of every shard, in the order of the index.

    Args:
        index: the checked index.
        read: returns what one shard holds, by name.

    Raises:
        CheckpointDamagedError: a shard holds other names than the index says.
    """
    found: dict[str, Value] = {}
    for path, names in index.names_of_file.items():
        shard = read(path)
        check_shard_names(index, path, names, shard)
        found.update({name: shard[name] for name in names})
    return found


def check_shard_names(
    index: ShardIndex, path: Path, expected: Iterable[str], found: Iterable[str]
) -> None:
    """Raise if a shard does not hold exactly the names that the index says.

    Raises:
        CheckpointDamagedError: a name is missing from the shard, or from the index.
    """
    expected, found = set(expected), set(found)
    if expected != found:
        missing, added = sorted(expected - found), sorted(found - expected)
        problem = f"has no tensor {missing[0]!r}" if missing else f"also holds {added[0]!r}"
        raise CheckpointDamagedError(
            f"{path} {problem}, which contradicts {index.path.name} ({len(missing)} missing, "
            f"{len(added)} more). Copy or download both again: their versions differ"
        )


def _check_text(path: Path, value: Any) -> str:
    if not isinstance(value, str):
        raise CheckpointDamagedError(
            f"{path} is not a valid index: it names a file {value!r:.80}, which is not a string"
        )
    return value
