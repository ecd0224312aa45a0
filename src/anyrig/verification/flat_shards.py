"""The parameters in the flat parameters of FSDP1, `FullyShardedDataParallel`.

::

    flat parameter of a module   [ weight . . . . . . . | bias . . ]
    shard of rank 0              [ weight . . . . . ]
    shard of rank 1                                [ . | bias . . ]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from .names import clean_name
from .piece import Piece


@dataclass(frozen=True)
class FlatPart:
    """What this rank has of a parameter.

    Attributes:
        name: the name of the parameter.
        owner: the module that has it.
        shape: its whole shape.
        begin: where the part begins in the tensor that the optimizer has.
        count: its number of elements.
        start: where it begins in the flattened parameter.
    """

    name: str
    owner: nn.Module
    shape: tuple[int, ...]
    begin: int
    count: int
    start: int

    def piece_of(self, tensor: Tensor) -> Piece:
        """Return the piece in a tensor that the optimizer has, or in its gradient."""
        values = tensor.detach().reshape(-1)[self.begin : self.begin + self.count].cpu().clone()
        return Piece(values, self.shape, (0,) * len(self.shape), flat_start=self.start)


def find_flat_parts(root: nn.Module) -> Mapping[int, tuple[FlatPart, ...]]:
    """Return the parts in each tensor that an optimizer may have, by the tensor's id."""
    found: dict[int, tuple[FlatPart, ...]] = {}
    for prefix, module in root.named_modules():
        # Private: no public name says where a parameter is in a shard. The case "fsdp1" of
        # tests/verification/correct_runs.py would notice a change.
        handle: Any = getattr(module, "_handle", None)
        if not isinstance(module, FullyShardedDataParallel) or handle is None:
            continue
        flat = handle.flat_param
        parts = _parts_of(flat, prefix, handle.uses_sharded_strategy)
        if flat._params is None:  # the optimizer has the flat parameter
            found[id(flat)] = tuple(part for part in parts if part is not None)
            continue
        for parameter, part in zip(flat._params, parts, strict=True):
            own = None if part is None else _at_the_begin(part)
            found[id(parameter)] = () if own is None else (own,)
    return found


def _parts_of(flat: Any, prefix: str, is_sharded: bool) -> list[FlatPart | None]:
    """Return this rank's part of each parameter in a flat parameter; None if it has none."""
    parts: list[FlatPart | None] = []
    begins = _begins(flat)
    for number, name in enumerate(flat._fqns):
        begin, count, start = begins[number], flat._numels[number], 0
        if is_sharded:
            info = flat._shard_param_infos[number]
            if not info.in_shard:
                parts.append(None)
                continue
            begin, count = info.offset_in_shard, info.numel_in_shard
            start = info.intra_param_start_idx
        owner = flat._param_infos[number].module
        full_name = clean_name(f"{prefix}.{name}" if prefix else name)
        shape = tuple(flat._shapes[number])
        parts.append(FlatPart(full_name, owner, shape, begin, count, start))
    return parts


def _begins(flat: Any) -> list[int]:
    """Return where each parameter begins in the whole flat parameter."""
    begins, position = [], 0
    for count, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if not is_padding:
            begins.append(position)
        position += count
    return begins


def _at_the_begin(part: FlatPart) -> FlatPart:
    return FlatPart(part.name, part.owner, part.shape, 0, part.count, part.start)
