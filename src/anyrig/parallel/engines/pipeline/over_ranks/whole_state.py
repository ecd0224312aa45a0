"""Tensors of a pipeline on their way to rank 0, which writes a checkpoint.

Like `DTensor`s, they have a method ``full_tensor``, which every rank must call for the same tensors
in the same order. Rank 0 gets the whole tensor, and no other rank does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .....processes.group.membership import current_context

_WRITER = 0
_TAG = 2**30 - 1  # the program may use other tags


class OnOneRank(Tensor):
    """A tensor of a checkpoint that one rank has; other ranks have only its shape and dtype.

    Attributes:
        source: the rank that has the tensor.
        held: the tensor on that rank; else None.
    """

    source: int
    held: Tensor | None
    # No kind of shard: see `torch.distributed.tensor.placement_types`.
    placements = ("one rank",)

    @staticmethod
    def __new__(
        cls, shape: Sequence[int], dtype: torch.dtype, source: int, held: Tensor | None
    ) -> OnOneRank:
        """Return a stand-in for `held`, which rank `source` has."""
        # Private, as for `Elsewhere`.
        made: OnOneRank = Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype)
        made.source, made.held = source, held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse every operator."""
        raise NotImplementedError(
            f"{func} cannot compute with a tensor that is being saved; call full_tensor() first"
        )

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"OnOneRank({self.source}, shape={tuple(self.shape)})"

    def full_tensor(self) -> Tensor:
        """Return the tensor on rank 0; a tensor without elements on other ranks."""
        rank, hosts = dist.get_rank(), current_context().carrier  # None: the default group
        nothing = torch.empty(0, dtype=self.dtype, device="cpu")
        if self.source == _WRITER:
            return nothing if self.held is None or rank != _WRITER else self.held.detach()
        if not self.numel():
            return torch.empty(self.shape, dtype=self.dtype, device="cpu")
        if rank == self.source:
            assert self.held is not None
            dist.send(self.held.detach().cpu().contiguous(), _WRITER, hosts, _TAG)
        elif rank == _WRITER:
            whole = torch.empty(self.shape, dtype=self.dtype, device="cpu")
            dist.recv(whole, self.source, hosts, _TAG)
            return whole
        return nothing
