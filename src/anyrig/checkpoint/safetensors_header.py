"""Read and check the header of a safetensors file, which says where each tensor's bytes lie.

::

    8 bytes     length of the header, little-endian
    header      JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …}
    data        the tensors' bytes; offsets count from here

The reader trusts nothing: names must be unique, each range must have the size of its tensor, and
the ranges must cover the data without gaps or overlaps, as the format requires.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from ..errors import CheckpointDamagedError
from ..regular_file import open_regular
from .strict_json import read_strict_json

MOST_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
LENGTH_BYTES = 8
_MOST_BITS = 8 * 2**63  # offsets are below 2**63
_MOST_SHOWN = 200  # characters of a value in a message

# Bits of an element. Elements of less than a byte are packed.
DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True)
class TensorRange:
    """Where a tensor's bytes lie.

    Attributes:
        dtype: the format's name of the element type, for example ``"BF16"``.
        shape: the tensor's shape.
        start: the first byte, counted from the beginning of the file.
        stop: the byte after the last one.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class SafetensorsHeader:
    """What a safetensors file says about its tensors.

    Attributes:
        tensors: the range of each tensor by name, in the order of their bytes.
        metadata: strings that the writer added. If a tensor has several names, as a tied weight
            does, safetensors' ``save_model`` writes the other names here.
    """

    tensors: Mapping[str, TensorRange]
    metadata: Mapping[str, str]

    def all_names(self) -> dict[str, str]:
        """Return, for each name of each tensor, the name under which its bytes are stored."""
        names = {name: name for name in self.tensors}
        for other, name in self.metadata.items():
            if name in self.tensors and other != "format":
                names.setdefault(other, name)
        return names


def has_safetensors_start(head: bytes) -> bool:
    """Return whether the first bytes look like a safetensors file: a length and a ``{``."""
    return len(head) > LENGTH_BYTES and head[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{"


def read_header(path: Path, *, follow_links: bool = False) -> SafetensorsHeader:
    """Return the checked header of a safetensors file; `follow_links` as for `open_regular`.

    Raises:
        CheckpointDamagedError: the header is not valid, or does not match the file's size.
        UnfitFileError: the path is not a regular file.
    """
    with open_regular(path, follow_links=follow_links) as file:
        return read_open_header(file, path)


def read_open_header(file: FileIO, path: Path) -> SafetensorsHeader:
    """Return the checked header of an open file; `path` names the file in errors.

    Raises:
        CheckpointDamagedError: the header is not valid, or does not match the file's size.
    """
    size_bytes = os.fstat(file.fileno()).st_size
    prefix = file.read(LENGTH_BYTES)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < LENGTH_BYTES or length > size_bytes - LENGTH_BYTES:
        raise _damaged(
            path,
            f"its header should take {length} bytes, but the file has {size_bytes} bytes",
        )
    if length > MOST_HEADER_BYTES:
        raise _damaged(path, f"its header of {length} bytes exceeds {MOST_HEADER_BYTES} bytes")
    text = file.read(length)
    try:
        entries = read_strict_json(text)
    except ValueError as error:
        raise _damaged(path, f"its header is not valid: {error}") from None
    if not isinstance(entries, dict):
        raise _damaged(path, f"its header is a {type(entries).__name__}, not an object")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _damaged(path, "its __metadata__ has values that are not strings")
    data_start = LENGTH_BYTES + length
    ranges = {name: _read_range(path, name, facts) for name, facts in entries.items()}
    ordered = dict(sorted(ranges.items(), key=lambda item: (item[1].start, item[1].stop)))
    position = 0
    for name, each in ordered.items():
        if each.start != position:
            kind = "overlaps the tensor before it" if each.start < position else "leaves a gap"
            raise _damaged(path, f"{name!r} {kind}: it starts at {each.start}, not {position}")
        position = each.stop
    if position != size_bytes - data_start:
        raise _damaged(
            path,
            f"its tensors take {position} bytes, but {size_bytes - data_start} bytes follow the "
            "header",
        )
    moved = {
        name: TensorRange(each.dtype, each.shape, each.start + data_start, each.stop + data_start)
        for name, each in ordered.items()
    }
    return SafetensorsHeader(moved, metadata)


def _read_range(path: Path, name: str, facts: Any) -> TensorRange:
    """Return one entry of the header, with the offsets of the header."""
    if not isinstance(facts, dict) or facts.keys() != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"the entry of {name!r} is not a dtype, a shape and data_offsets")
    dtype, shape, offsets = facts["dtype"], facts["shape"], facts["data_offsets"]
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise _damaged(path, f"{name!r} has the unknown dtype {dtype!r}")
    if not _is_counts(shape) or not _is_counts(offsets) or len(offsets) != 2:
        raise _damaged(
            path, f"{name!r} has the shape {_shown(shape)} and the offsets {_shown(offsets)}"
        )
    expected_bits = _count_bits(shape, bits)
    if expected_bits != 8 * (offsets[1] - offsets[0]):
        needs = "too many" if expected_bits is None else f"{expected_bits / 8:g}"
        raise _damaged(
            path,
            f"{name!r} of {dtype} and shape {_shown(shape)} needs {needs} bytes, but its "
            f"range has {offsets[1] - offsets[0]}",
        )
    return TensorRange(dtype, tuple(shape), offsets[0], offsets[1])


def _count_bits(shape: list[int], bits: int) -> int | None:
    """Return the bits of a tensor; None if no file has as many bytes.

    The product stays small, however many dimensions a hostile header has.
    """
    if 0 in shape:
        return 0
    for size in shape:
        bits *= size
        if bits > _MOST_BITS:
            return None
    return bits


def _shown(value: Any) -> str:
    text = reprlib.repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _is_counts(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 2**63 for value in values
    )


def _damaged(path: Path, problem: str) -> CheckpointDamagedError:
    return CheckpointDamagedError(
        f"{path} is not a valid safetensors file: {problem}. Copy or download it again"
    )
