"""The exchange of a few numbers between the hosts, apart from the devices' collectives."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .membership import Context, carrier_of


def gather_numbers(own: torch.Tensor, group: Any = None) -> tuple[torch.Tensor, Any]:
    """Start an all-gather of a few numbers on the CPU.

    Each rank sends directly to every other. gloo's all-reduce needs several rounds of messages,
    which took four times the processor time.

    Args:
        own: this rank's numbers, of shape (numbers,), the same shape on every rank.
        group: the process group to use; None takes the default group.

    Returns:
        A tensor of shape (ranks, numbers), and the work that fills it.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    gathered = own.new_zeros(ranks, len(own))
    gathered[rank] = own
    sent = own.repeat(ranks)
    return gathered, dist.all_to_all_single(gathered.view(-1), sent, group=group, async_op=True)


def open_carrier(context: Context) -> None:
    """Create a gloo group for tensors on the CPU if the default group does not carry them.

    Every rank must call this at the same time. All models share the group.
    """
    on_cpu = carrier_of(dist.get_backend_config(), torch.device("cpu"))
    if context.carrier is None and on_cpu is None:
        context.carrier = dist.new_group(backend="gloo")
