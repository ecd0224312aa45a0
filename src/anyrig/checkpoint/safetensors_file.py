"""Tensors by name in files of the safetensors format, as Hugging Face's libraries read them.

::

    ┌───────────────┬──────────────────────────────────────────────────┬──────────────┐
    │ 8 bytes: size │ JSON: {"a": {"dtype", "shape", "data_offsets"}} │ bytes of a … │
    └───────────────┴──────────────────────────────────────────────────┴──────────────┘

`safetensors.torch.save_file` copies all tensors before it writes. This writer takes one tensor at a
time, as large models and models in shards need, and its parts are hashed while they are written.
Files are read by the library, which checks headers and maps the file into memory.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import CheckpointDamagedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Hugging Face's libraries split larger models, too.
LARGEST_FILE_BYTES = 5 * 10**9

_NAME_OF_DTYPE = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}


def fits_safetensors(value: Any) -> bool:
    """Return whether a value is a tensor that the format can hold."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.dtype in _NAME_OF_DTYPE
    )


def contents_of(
    stem: str, tensors: Mapping[str, Tensor], to_host: Callable[[Tensor], Tensor]
) -> dict[str, Iterable[Buffer]]:
    """Return the files that hold `tensors`: their names, and their content in parts.

    ``model.safetensors``, or with more than `LARGEST_FILE_BYTES` several files and an index.
    Tensors that are one object are written once, as by `safetensors.torch.save_model`. Read the
    contents in their order: `to_host` is called for each tensor once, and may be a collective.

    Args:
        stem: the beginning of the files' names.
        tensors: by name.
        to_host: returns a whole tensor in the host's memory.
    """
    first_name: dict[int, str] = {}
    aliases: dict[str, str] = {}
    shards: list[dict[str, Tensor]] = [{}]
    bytes_ = 0
    for name, tensor in tensors.items():
        first = first_name.setdefault(id(tensor), name)
        if first != name:
            aliases[name] = first
            continue
        size = _size_of(tensor)
        if shards[-1] and bytes_ + size > LARGEST_FILE_BYTES:
            shards.append({})
            bytes_ = 0
        shards[-1][name] = tensor
        bytes_ += size
    if len(shards) == 1:
        return {f"{stem}.safetensors": _encode(shards[0], aliases, to_host)}
    names = [
        f"{stem}-{index:05d}-of-{len(shards):05d}.safetensors"
        for index in range(1, len(shards) + 1)
    ]
    file_of = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    index = {
        "metadata": {"total_size": sum(map(_size_of, (tensors[name] for name in file_of)))},
        "weight_map": file_of | {alias: file_of[first] for alias, first in aliases.items()},
    }
    contents: dict[str, Iterable[Buffer]] = {}
    for name, shard in zip(names, shards, strict=True):
        here = {alias: first for alias, first in aliases.items() if first in shard}
        contents[name] = _encode(shard, here, to_host)
    contents[f"{stem}.safetensors.index.json"] = [json.dumps(index, indent=1).encode()]
    return contents


def read_tensors(folder: Path, stem: str) -> dict[str, Tensor]:
    """Return the tensors that `contents_of` has written, mapped from their files.

    Raises:
        CheckpointDamagedError: a file is missing or does not have the format.
    """
    index_path = folder / f"{stem}.safetensors.index.json"
    try:
        if not index_path.exists():
            return read_file(folder / f"{stem}.safetensors")
        names = set(json.loads(index_path.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointDamagedError(f"{index_path} is no index: {error!r}", index_path) from None
    found: dict[str, Tensor] = {}
    for name in sorted(names):
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointDamagedError(f"{index_path} names {name!r} as a file", index_path)
        found |= read_file(folder / name)
    return found


def read_file(path: Path) -> dict[str, Tensor]:
    """Return the tensors of one file. They are mapped: the file is read where they are used.

    Raises:
        CheckpointDamagedError: the file is missing or does not have the format.
    """
    from safetensors import SafetensorError, safe_open

    try:
        # The library makes tensors on the default device, which the program may have changed.
        with torch.device("cpu"), safe_open(path, framework="pt", device="cpu") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise CheckpointDamagedError(
            f"{path} cannot be read as safetensors: {error}", path
        ) from None
    return found | {
        alias: found[first]
        for alias, first in metadata.items()
        if first in found and alias not in ("format", first)
    }


def _encode(
    tensors: Mapping[str, Tensor],
    aliases: Mapping[str, str],
    to_host: Callable[[Tensor], Tensor],
) -> Iterator[Buffer]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **aliases}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + _size_of(tensor)
        header[name] = {
            "dtype": _NAME_OF_DTYPE[tensor.dtype],
            "shape": [*tensor.shape],
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of eight bytes
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        whole = to_host(tensor)
        if whole.numel():
            yield _bytes_of(whole)


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a tensor on the host; NumPy, which could do that, may be missing."""
    tensor = tensor.contiguous()
    buffer = (ctypes.c_char * _size_of(tensor)).from_address(tensor.data_ptr())
    buffer.owner = tensor  # type: ignore[attr-defined]  # which lives as long as the view
    return memoryview(buffer).cast("B")


def _size_of(tensor: Tensor) -> int:
    return prod(tensor.shape) * tensor.element_size()
