"""Numbers and bytes of every rank, by the collectives of its group.

::

    rank 0  ▓▓▓▓▓                  ┌ pad to the longest, one collective ┐   ▓▓▓▓▓ ▒▒ ░░░░
    rank 1  ▒▒             ──────▶ │  ▓▓▓▓▓  ▒▒···  ░░░░·               │─▶ on every rank
    rank 2  ░░░░                   └────────────────────────────────────┘
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..membership import Group


def control_device(group: Group) -> torch.device:
    """Return where small numbers travel: the CPU if the group carries its tensors."""
    return torch.device("cpu") if "cpu" in _carried() else group.device


def where(leaves: Iterable[Any]) -> tuple[int, int]:
    """Return whether any of `leaves` is a tensor on the CPU, and whether one is elsewhere."""
    on_cpu = [leaf.device.type == "cpu" for leaf in leaves if isinstance(leaf, Tensor)]
    return int(any(on_cpu)), int(not all(on_cpu))


def data_device(group: Group, where_of_ranks: Iterable[Sequence[int]]) -> torch.device:
    """Return by way of which device tensors travel, from what `where` says on every rank.

    Their own kind of device, if all of them lie on accelerators and the group carries these by
    itself; gloo would only copy them to the CPU and back.
    """
    on_cpu, elsewhere = (any(column) for column in zip(*where_of_ranks, strict=True))
    own = _carried().get(group.device.type, "gloo")
    if elsewhere and not on_cpu and own != "gloo":
        return group.device
    return control_device(group)


def gather_numbers(numbers: Sequence[int], group: Group) -> list[list[int]]:
    """Return the whole numbers of every rank, of which all give as many."""
    device = control_device(group)
    mine = torch.tensor(list(numbers), dtype=torch.int64, device=device)
    every = mine.new_empty(group.world_size, len(numbers))
    dist.all_gather(list(every), mine)
    return every.tolist()


def gather_bytes(data: bytes, sizes: Sequence[int], group: Group) -> list[bytes]:
    """Return what every rank gave; `sizes` says how much, and all know it."""
    # A copy, since bytes cannot be written to and a tensor can.
    mine = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[: len(data)]
    every = gather_rows(mine.to(control_device(group)), sizes, group)
    return [_bytes(part.cpu()) for part in every]


def gather_rows(mine: Tensor, sizes: Sequence[int], group: Group) -> list[Tensor]:
    """Return the vector of every rank; `sizes` says how long they are, and all know it."""
    longest = max(sizes)
    if not longest:
        return [mine[:0] for _ in sizes]
    every = mine.new_empty(len(sizes), longest)
    padded = torch.nn.functional.pad(mine, (0, longest - len(mine)))
    dist.all_gather(list(every), padded)
    return [row[:size] for row, size in zip(every, sizes, strict=True)]


def _bytes(part: Tensor) -> bytes:
    return ctypes.string_at(part.data_ptr(), len(part)) if len(part) else b""


def _carried() -> dict[str, str]:
    """Return which backend carries the tensors of which kind of device."""
    parts = (part.partition(":") for part in dist.get_backend_config().split(","))
    return {kind: backend for kind, _, backend in parts if backend}
