"""A value taken apart into its tensors and the rest, and put together again.

::

    {"scores": tensor, "names": ["a", "b"]}   ──▶   pickle of {"scores": ①, "names": ["a", "b"]}
                                                    and the bytes of ①, which are never pickled
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from ..leaves import is_dense

# Any dtype can be read in place from a multiple of this.
_ALIGNMENT = 16


@dataclass(frozen=True)
class Packed:
    """A value in parts.

    Attributes:
        pickled: all but the tensors' elements.
        tensors: in the order in which `pickled` names them.
    """

    pickled: bytes
    tensors: tuple[Tensor, ...]

    @property
    def data_bytes(self) -> int:
        """The size of `data`."""
        size = sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)
        return -(-size // _ALIGNMENT) * _ALIGNMENT

    def data(self, device: torch.device) -> Tensor:
        """Return the elements of all tensors as one vector of bytes on `device`."""
        parts = [
            self.tensors[i].reshape(-1).contiguous().view(torch.uint8).to(device)
            for i in _by_size([tensor.dtype for tensor in self.tensors])
        ]
        padding = self.data_bytes - sum(len(part) for part in parts)
        return torch.cat([*parts, torch.zeros(padding, dtype=torch.uint8, device=device)])


def pack(value: Any) -> Packed:
    """Take a value apart.

    Raises:
        ValueError: it has a tensor that is not dense, or something that cannot be pickled.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ValueError(f"it cannot be sent to other ranks: {error}") from None
    tensors = tuple(tensor.detach() for tensor in pickler.tensors)
    shapes = [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
    return Packed(pickle.dumps((shapes, file.getvalue())), tensors)


def unpack(pickled: bytes, data: Tensor) -> Any:
    """Put a value together, its tensors where `data` lies.

    `pickled` comes from a rank of the same group, which runs the same program for the same user.
    """
    shapes, rest = pickle.loads(pickled)  # noqa: S301 - see above
    tensors: dict[int, Tensor] = {}
    start = 0
    for i in _by_size([dtype for dtype, _ in shapes]):
        dtype, shape = shapes[i]
        size = torch.Size(shape).numel() * dtype.itemsize
        tensors[i] = data[start : start + size].view(dtype).view(shape)
        start += size
    return _Unpickler(rest, tensors).load()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles tensors as their numbers. Classes of a notebook are sent by value."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        if not is_dense(value):
            raise ValueError(
                f"it has a tensor that is not dense ({type(value).__name__}, {value.layout}); send "
                "the dense one, by to_dense() or full_tensor()"
            )
        for number, known in enumerate(self.tensors):
            if known is value:
                return number
        self.tensors.append(value)
        return len(self.tensors) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes, tensors: dict[int, Tensor]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._tensors = tensors

    def persistent_load(self, number: int) -> Tensor:
        return self._tensors[number]


def _by_size(dtypes: Sequence[torch.dtype]) -> list[int]:
    """Return the order in which tensors lie, so that each begins at a multiple of its elements."""
    return sorted(range(len(dtypes)), key=lambda i: -dtypes[i].itemsize)
