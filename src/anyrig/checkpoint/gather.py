"""Gather tensors in shards on rank 0, if rank 0 writes the whole checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .over_ranks import Ranks, describe_problem
from .shards import is_sharded


class Gather:
    """Returns tensors in the host's memory, and remembers a collective that failed.

    After a failure, the ranks are at different collectives, so none may begin another. The other
    ranks wait until the collective times out, and then report why the rank has failed.

    Args:
        ranks: the ranks that save together.
        to_host: returns a tensor in the host's memory; see `whole_on_host`.
    """

    def __init__(self, ranks: Ranks, to_host: Callable[[Tensor], Tensor]) -> None:
        self._ranks, self._to_host = ranks, to_host
        self._key = f"gather/{ranks.number}"
        self.failed: Exception | None = None

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return a tensor in the host's memory.

        Raises:
            OtherRankError: the collective failed because another rank could not take part.
        """
        try:
            return self._to_host(tensor)
        except Exception as error:
            if not is_sharded(tensor) or self._ranks.count == 1:
                raise
            others = {
                rank: problem
                for rank, problem in self._ranks.look(self._key).items()
                if rank != self._ranks.rank
            }
            self._ranks.post(self._key, describe_problem(error))
            self.failed = error
            for rank, problem in others.items():
                self.failed = self._ranks.failure_of(rank, problem)
                raise self.failed from error
            raise

    def take_part(self, tensor: Tensor) -> Tensor:
        """Gather a tensor that rank 0 writes; return a tensor without elements."""
        if is_sharded(tensor):
            self(tensor)
        return torch.empty(0, device="cpu")
