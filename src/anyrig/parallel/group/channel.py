"""How the hosts of the ranks exchange a few numbers, apart from what their devices exchange."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .membership import Context, carrier_of


def tell_all(own: torch.Tensor, group: Any = None) -> tuple[torch.Tensor, Any]:
    """Start an all-gather of a few numbers on the CPU.

    The ranks send directly to each other: gloo's all-reduce takes several rounds of messages to
    bring as much, which cost four times the processor time.

    Args:
        own: the numbers of this rank, one dimension, as many on every rank.
        group: the process group that carries it; None takes the default group.

    Returns:
        A tensor with one row for each rank, and the work after which the rows are filled.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = own.new_zeros(ranks, len(own))
    rows[rank] = own
    given = own.repeat(ranks)
    return rows, dist.all_to_all_single(rows.view(-1), given, group=group, async_op=True)


def open_carrier(context: Context) -> None:
    """Make the process group for tensors on the CPU; every rank calls this at the same time.

    It stays None if the default group carries the CPU's tensors itself. If the script made a
    default group that does not, gloo does so in addition, for all models.
    """
    cpu = torch.device("cpu")
    if context.carrier is None and carrier_of(dist.get_backend_config(), cpu) is None:
        context.carrier = dist.new_group(backend="gloo")
