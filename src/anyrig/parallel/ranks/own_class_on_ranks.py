"""Compare on all ranks what tensors of a custom class carry besides tensors.

The tensors are broadcast; a block size or a kind of quantisation must be equal from the beginning.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor, nn

from ...errors import RankMismatchError
from ...processes.group.board import board_of
from ...processes.group.membership import Group
from ...processes.time_limit import limit_or_default
from ...transfer.inner_tensors import class_of, describe_wrapper_type, is_wrapper
from ..own_class import carried_values, find_own_class

_PLAIN = (bool, int, float, str, tuple, torch.dtype)


def require_same_kinds(module: nn.Module, group: Group) -> None:
    """Raise if tensors of a custom class are of different kinds on the ranks.

    Every rank must call this if its module has such tensors.

    Raises:
        RankMismatchError: a tensor differs; the message names it.
        RankWaitError: another rank did not come in time.
    """
    own = {found.name: _describe(found.tensor) for found in find_own_class(module)}
    if not own:
        return
    limit = limit_or_default(None)
    texts = board_of(group).exchange("own class", json.dumps(own).encode(), limit, "spread()")
    of_ranks: list[dict[str, str]] = [json.loads(text) for text in texts]
    for rank, other in enumerate(of_ranks):
        for name in sorted({*other, *of_ranks[0]}):
            first, its = of_ranks[0].get(name, "plain"), other.get(name, "plain")
            if first != its:
                raise RankMismatchError(
                    f"{name} is {first} on rank 0 and {its} on rank {rank}. Quantise the module in "
                    "the same way on every rank, from the same values, before spread()"
                )


def _describe(tensor: Tensor) -> str:
    if is_wrapper(tensor):
        return describe_wrapper_type(tensor)
    facts = [class_of(tensor), str(tensor.dtype), str(tuple(tensor.shape))]
    facts += [f"{n}={value}" for n, value in carried_values(tensor) if isinstance(value, _PLAIN)]
    return "; ".join(facts)
