"""What every rank brings to a call, on every rank.

Each announces its call and its value without the tensors, whose bytes follow by one collective::

    {"scores": tensor, "names": ["a", "b"]}   ──▶   pickle of {"scores": ①, "names": ["a", "b"]}
                                                    and the bytes of ①, which are never pickled

Pickles come from the ranks of one group, which run one program for one user, as those of PyTorch's
`all_gather_object` do.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch import Tensor

from ....errors import RankMismatchError
from ..board import board_of
from ..leaves import is_dense
from ..membership import Group, carrier_of


@dataclass(frozen=True)
class Announcement:
    """What one rank brings to the public function `call`.

    Attributes:
        said: lines of text, a leaf each, that must be the same on all ranks.
        error: why this rank cannot go on, if it cannot; every rank then raises.
        kinds: of the devices that its tensors are on.
        pickled: its value without the tensors, which have `data_bytes`.
    """

    call: str
    said: Sequence[str] = ()
    error: str = ""
    kinds: frozenset[str] = frozenset()
    pickled: bytes = b""
    data_bytes: int = 0


def agree(group: Group, mine: Announcement) -> tuple[list[Announcement], torch.device]:
    """Return what every rank brings, and by way of which device the tensors are to travel.

    Raises:
        RankMismatchError: some rank differs from rank 0, or cannot go on; the message says which,
            and where.
    """
    board_of(group).come_to(mine.call)
    heard: list[Any] = [None] * group.world_size
    dist.all_gather_object(heard, mine)
    for rank, other in enumerate(heard):
        if other.error:
            raise RankMismatchError(f"rank {rank} in {other.call}: {other.error}")
    first = heard[0]
    for rank, other in enumerate(heard):
        if other.call != first.call:
            raise RankMismatchError(
                f"rank {rank} calls {other.call}, while rank 0 calls {first.call}; let all ranks "
                "call the same in the same order"
            )
        for expected, found in zip_longest(first.said, other.said, fillvalue="nothing more"):
            if found != expected:
                raise RankMismatchError(
                    f"{first.call} needs the same structure on every rank: rank 0 has {expected}, "
                    f"but rank {rank} has {found}"
                )
    return heard, _choose_device(group, mine.kinds.union(*(other.kinds for other in heard)))


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
    kinds = frozenset(tensor.device.type for tensor in pickler.tensors)
    mine = Announcement(call, (), error, kinds, file.getvalue(), pickler.data_bytes)
    heard, device = agree(group, mine)
    longest = max(other.data_bytes for other in heard)
    padding = torch.zeros(longest - mine.data_bytes, dtype=torch.uint8, device=device)
    data = torch.cat([*(_bytes_of(tensor).to(device) for tensor in pickler.tensors), padding])
    every = data.new_empty(group.world_size, longest)
    dist.all_gather(list(every), data)
    return [
        _Unpickler(io.BytesIO(other.pickled), data).load()
        for other, data in zip(heard, every, strict=True)
    ]


def _choose_device(group: Group, kinds: frozenset[str]) -> torch.device:
    # The tensors' own, if all lie on accelerators and the group carries these by itself; gloo
    # would only copy them to the CPU and back.
    backends = dist.get_backend_config()
    by_itself = carrier_of(backends, group.device) not in (None, "gloo")
    on_host = torch.device("cpu")
    if carrier_of(backends, on_host) is None or (by_itself and kinds and "cpu" not in kinds):
        return group.device
    return on_host


def _bytes_of(tensor: Tensor) -> Tensor:
    elements = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    return elements.contiguous().view(torch.uint8)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles of tensors where their bytes begin, the dtype and the shape.

    Classes of a notebook are sent by value.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []
        self.data_bytes = 0
        self._ids: dict[int, Any] = {}

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return None
        if not is_dense(value):
            raise ValueError(
                f"it has a tensor that is not dense ({type(value).__name__}, {value.layout}); send "
                "the dense one, by to_dense() or full_tensor()"
            )
        if id(value) not in self._ids:
            self._ids[id(value)] = self.data_bytes, value.dtype, tuple(value.shape)
            self.tensors.append(value)
            self.data_bytes += value.numel() * value.element_size()
        return self._ids[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, data: Tensor) -> None:
        super().__init__(file)
        self._data = data
        self._known: dict[Any, Tensor] = {}

    def persistent_load(self, place: Any) -> Tensor:
        if place not in self._known:
            start, dtype, shape = place
            size = torch.Size(shape).numel() * dtype.itemsize
            # A copy begins where elements of any size may begin.
            elements = self._data[start : start + size].clone()
            self._known[place] = elements.view(dtype).view(shape)
        return self._known[place]
