"""The exchange of values of any structure between all ranks.

Each rank announces its call and its value without the tensors. One collective then carries the
bytes of all tensors::

    {"scores": tensor, "names": ["a", "b"]}   ──▶   pickle of {"scores": ①, "names": ["a", "b"]}
                                                    and the bytes of ①, which are never pickled

Pickles are loaded from the ranks of the group only. All of them run one program for one user, as
with PyTorch's `all_gather_object`.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch import Tensor

from ....errors import RankMismatchError
from ....processes.group.board import board_of
from ....processes.group.membership import Group, carrier_of
from ...parts.cut import is_dense


@dataclass(frozen=True)
class Contribution:
    """What one rank gives to a call of a public function."""

    call: str
    outline: Sequence[str] = ()  # descriptions of leaves, which must be the same on all ranks
    error: str = ""  # why this rank cannot continue; then every rank raises
    kinds: frozenset[str] = frozenset()  # of the devices that hold the tensors
    pickled: bytes = b""  # the value without the tensors
    data_bytes: int = 0  # the size of the tensors


def agree(group: Group, own: Contribution) -> tuple[list[Contribution], torch.device]:
    """Return what every rank gives, and the device over which tensors are to be sent.

    Raise RankMismatchError if a rank differs from rank 0, or cannot continue.
    """
    board_of(group).reach(own.call)
    given: list[Any] = [None] * group.world_size
    dist.all_gather_object(given, own)
    for rank, other in enumerate(given):
        if other.error:
            raise RankMismatchError(f"rank {rank} in {other.call}: {other.error}")
    first = given[0]
    for rank, other in enumerate(given):
        if other.call != first.call:
            raise RankMismatchError(
                f"rank {rank} calls {other.call}, while rank 0 calls {first.call}; let all ranks "
                "make the same calls in the same order"
            )
    for of_ranks in zip_longest(*(other.outline for other in given), fillvalue="nothing more"):
        require_equal(own.call, of_ranks)
    kinds = own.kinds.union(*(other.kinds for other in given))
    backends, on_host = dist.get_backend_config(), torch.device("cpu")
    # gloo would copy tensors on a GPU to the CPU and back.
    sends_from_gpu = carrier_of(backends, group.device) not in (None, "gloo")
    if carrier_of(backends, on_host) is None or (sends_from_gpu and kinds and "cpu" not in kinds):
        return given, group.device
    return given, on_host


def require_equal(
    call: str,
    of_ranks: Sequence[Any],
    describe: Callable[[Any], str] = str,
    place: str = "",
    remedy: str = "",
) -> None:
    """Raise RankMismatchError unless all entries of `of_ranks` are equal."""
    for rank, other in enumerate(of_ranks):
        if other != of_ranks[0]:
            raise RankMismatchError(
                f"{call} needs the same structure on every rank: rank 0 has "
                f"{describe(of_ranks[0])}{place}, but rank {rank} has {describe(other)}{remedy}"
            )


def exchange(call: str, value: Any, group: Group) -> list[Any]:
    """Return the value of every rank. The tensors are on the device over which they were sent.

    Raise RankMismatchError if a rank makes a different call, or its value contains a tensor that is
    not dense or an object that cannot be pickled.
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
    own = Contribution(call, (), error, kinds, file.getvalue(), pickler.data_bytes)
    given, device = agree(group, own)
    longest = max(other.data_bytes for other in given)
    padding = torch.zeros(longest - own.data_bytes, dtype=torch.uint8, device=device)
    own_values = [each.detach().resolve_conj().resolve_neg() for each in pickler.tensors]
    own_bytes = [each.reshape(-1).contiguous().view(torch.uint8) for each in own_values]
    data = torch.cat([*(each.to(device) for each in own_bytes), padding])
    of_ranks = data.new_empty(group.world_size, longest)
    dist.all_gather(list(of_ranks), data)
    return [
        _Unpickler(io.BytesIO(other.pickled), data).load()
        for other, data in zip(given, of_ranks, strict=True)
    ]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a tensor as the position of its bytes, its dtype and its shape.

    Classes of a notebook are pickled by value.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []
        self.data_bytes = 0

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return None
        if not is_dense(value):
            raise ValueError(
                f"it has a tensor that is not dense ({type(value).__name__}, {value.layout}); send "
                "a dense tensor, from to_dense() or full_tensor()"
            )
        start = self.data_bytes
        self.tensors.append(value)
        self.data_bytes += value.numel() * value.element_size()
        return start, value.dtype, tuple(value.shape)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, data: Tensor) -> None:
        super().__init__(file)
        self._data = data

    def persistent_load(self, place: Any) -> Tensor:
        start, dtype, shape = place
        size = torch.Size(shape).numel() * dtype.itemsize
        # The clone is aligned for elements of any size.
        return self._data[start : start + size].clone().view(dtype).view(shape)
