"""The values of all ranks on every rank: each is taken apart and put together again.

::

    {"scores": tensor, "names": ["a", "b"]}   ──▶   pickle of {"scores": ①, "names": ["a", "b"]}
                                                    and the bytes of ①, which are never pickled
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch import Tensor

from ..leaves import is_dense
from ..membership import Group
from .agreement import Announcement, agree


def exchange(call: str, value: Any, group: Group) -> list[Any]:
    """Return the value of every rank, its tensors on the device by way of which they came.

    Raises:
        RankMismatchError: a rank makes another call, or its value has a tensor that is not dense,
            or something that cannot be pickled.
    """
    file, error = io.BytesIO(), ""
    pickler = _Pickler(file)
    try:
        pickler.dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as refused:
        error = f"it cannot be sent to other ranks: {refused}"
    except ValueError as refused:
        error = str(refused)
    tensors = pickler.tensors
    heard, device = agree(group, call, tensors, error=error, pickled=file.getvalue())
    sizes = [sum(shape.numel() * dtype.itemsize for dtype, shape in each.layout) for each in heard]
    longest = max(sizes)
    # Padded to the longest, so that one collective does for all tensors of all ranks.
    padding = torch.zeros(longest - sizes[group.rank], dtype=torch.uint8, device=device)
    mine = torch.cat([*(_bytes_of(tensor).to(device) for tensor in tensors), padding])
    every = mine.new_empty(group.world_size, longest)
    dist.all_gather(list(every), mine)
    return [
        # The pickle comes from a rank of the same group: the same program for the same user.
        _Unpickler(io.BytesIO(other.pickled), _read(other, data)).load()
        for other, data in zip(heard, every, strict=True)
    ]


def _bytes_of(tensor: Tensor) -> Tensor:
    elements = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    return elements.contiguous().view(torch.uint8)


def _read(announcement: Announcement, data: Tensor) -> Iterator[Tensor]:
    start = 0
    for dtype, shape in announcement.layout:
        size = shape.numel() * dtype.itemsize
        # A copy begins where elements of any size may begin.
        yield data[start : start + size].clone().view(dtype).view(shape)
        start += size


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles tensors as their numbers. Classes of a notebook are sent by value."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        if not is_dense(value):
            raise ValueError(
                f"it has a tensor that is not dense ({type(value).__name__}, {value.layout}); send "
                "the dense one, by to_dense() or full_tensor()"
            )
        number = self._numbers.setdefault(id(value), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(value)
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Iterator[Tensor]) -> None:
        super().__init__(file)
        self._tensors = list(tensors)

    def persistent_load(self, number: int) -> Tensor:
        return self._tensors[number]
