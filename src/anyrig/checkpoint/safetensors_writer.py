"""Write safetensors files tensor by tensor: the header first, which needs only the shapes.

::

    ┌───────────────┬──────────────────────────────────────────────────┬──────────────┐
    │ 8 bytes: size │ JSON: {"a": {"dtype", "shape", "data_offsets"}} │ bytes of a … │
    └───────────────┴──────────────────────────────────────────────────┴──────────────┘

`safetensors.torch.save_file` copies all tensors before it writes. Here, memory holds one tensor at
a time, or a buffer where the bytes are copied from another file.
"""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from torch import Tensor

from ..errors import CheckpointError
from .foreign.file_part import open_part
from .safetensors_header import DTYPE_BITS, LENGTH_BYTES, TensorRange

if TYPE_CHECKING:
    from typing_extensions import Buffer

_COPY_BYTES = 1 << 20
_NAMES = {
    "BOOL": "bool",
    **{f"{kind}{bits}": f"{word}{bits}" for kind, word, bits in (
        *(("I", "int", bits) for bits in (8, 16, 32, 64)),
        *(("U", "uint", bits) for bits in (8, 16, 32, 64)),
        *(("F", "float", bits) for bits in (16, 32, 64)),
        ("BF", "bfloat", 16),
        ("C", "complex", 64),
    )},
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
_TEXTS = {torch_name: text for text, torch_name in _NAMES.items()}
# Element types that not every version of the safetensors library reads.
_RARE = {"U16", "U32", "U64", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"}


@dataclass(frozen=True)
class TensorSource:
    """A tensor to be written.

    Attributes:
        name: its name.
        dtype: safetensors' name of the element type.
        shape: its shape.
        read: returns its bytes, in parts.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Iterable[Buffer]]

    @property
    def bytes(self) -> int:
        """How many bytes `read` must return."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


def source_of_tensor(name: str, tensor: Tensor) -> TensorSource:
    """Return the source of a tensor in memory, or mapped from a file.

    Raises:
        CheckpointError: safetensors cannot hold the tensor.
    """
    _check_plain(name, tensor)
    return lazy_source(name, tensor.dtype, tuple(tensor.shape), lambda: tensor)


def lazy_source(
    name: str, dtype: torch.dtype, shape: tuple[int, ...], read: Callable[[], Tensor]
) -> TensorSource:
    """Return the source of a tensor that is read when it is written."""
    return TensorSource(name, dtype_text(name, dtype), shape, lambda: _bytes_of(name, read()))


def source_of_range(name: str, path: Path, each: TensorRange) -> TensorSource:
    """Return the source of a tensor whose bytes are copied from another safetensors file."""

    def copy() -> Iterator[Buffer]:
        with open_part(path, each.start, each.stop - each.start) as part:
            while data := part.read(_COPY_BYTES):
                yield data

    return TensorSource(name, each.dtype, each.shape, copy)


def encode_safetensors(
    sources: Iterable[TensorSource], metadata: Mapping[str, str]
) -> Iterator[Buffer]:
    """Yield the content of a safetensors file in parts.

    Args:
        sources: the tensors; the largest elements are written first, so that all are aligned.
        metadata: strings for the header.

    Raises:
        CheckpointError: two tensors have one name, or a tensor's bytes do not match its shape.
    """
    ordered = in_file_order(sources)
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    position = 0
    for each in ordered:
        if each.name in entries:
            raise CheckpointError(f"safetensors cannot hold two tensors named {each.name!r}")
        offsets = [position, position + each.bytes]
        entries[each.name] = {"dtype": each.dtype, "shape": [*each.shape], "data_offsets": offsets}
        position = offsets[1]
    try:
        header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"A tensor's name is not valid Unicode: {error}") from None
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(LENGTH_BYTES, "little") + header
    for each in ordered:
        count = 0
        for part in each.read():
            count += memoryview(part).nbytes
            yield part
        if count != each.bytes:
            raise CheckpointError(
                f"{each.name!r} needs {each.bytes} bytes, but {count} were written; the source was "
                "changed meanwhile"
            )


def in_file_order(sources: Iterable[TensorSource]) -> list[TensorSource]:
    """Return tensors in the order in which `encode_safetensors` reads them."""
    return sorted(sources, key=lambda each: (-DTYPE_BITS[each.dtype], each.name))


def write_safetensors(
    file: BinaryIO, sources: Iterable[TensorSource], metadata: Mapping[str, str]
) -> int:
    """Write a safetensors file, and return its size in bytes; see `encode_safetensors`."""
    size_bytes = 0
    for part in encode_safetensors(sources, metadata):
        file.write(part)
        size_bytes += memoryview(part).nbytes
    return size_bytes


def fits_safetensors(value: Any) -> bool:
    """Return whether a value is a tensor that every reader of safetensors can read."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return False
    text = _TEXTS.get(str(value.dtype).removeprefix("torch."))
    return text is not None and text not in _RARE


def dtype_text(name: str, dtype: torch.dtype) -> str:
    """Return safetensors' name of an element type; `name` is the tensor in errors.

    Raises:
        CheckpointError: safetensors has no such element type.
    """
    text = _TEXTS.get(str(dtype).removeprefix("torch."))
    if text is None:
        raise CheckpointError(
            f"safetensors cannot hold {name!r}, whose elements are {dtype}. Convert to a torch "
            "file (.pt) instead"
        )
    return text


def torch_name_of(dtype: str) -> str:
    """Return PyTorch's name for an element type of safetensors: ``"float32"`` for ``"F32"``."""
    return _NAMES.get(dtype, dtype)


def _bytes_of(name: str, tensor: Tensor) -> list[memoryview]:
    """Return the memory of a tensor on the host, without NumPy, which may be missing."""
    _check_plain(name, tensor)
    # A lazily conjugated or negated view has the bytes of the tensor that it views.
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if not whole.numel():
        return []
    if not whole.data_ptr():
        raise CheckpointError(
            f"{name!r} is a {type(tensor).__name__} without memory of its own, so it has no bytes "
            "to write. Write the tensors that it holds"
        )
    buffer = (ctypes.c_char * (whole.numel() * whole.element_size())).from_address(whole.data_ptr())
    buffer.owner = whole  # type: ignore[attr-defined]  # lives as long as the view
    return [memoryview(buffer).cast("B")]


def _check_plain(name: str, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        kind = "quantized" if tensor.is_quantized else f"{tensor.layout} on {tensor.device}"
        raise CheckpointError(
            f"{name!r} is {kind}; only dense tensors on the CPU are written. Convert it first"
        )
