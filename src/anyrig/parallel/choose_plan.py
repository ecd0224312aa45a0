"""The plan of a module whose caller has named none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ..units import format_bytes
from .plans import Pipeline, Plan, Replicas, Shards


def choose_plan(
    module: torch.nn.Module,
    total_bytes: Sequence[int | None],
    otherwise: Shards | Pipeline | None,
) -> tuple[Plan, str]:
    """Return replicas if training fits each device, else the other plan, and why.

    Training holds parameters, buffers, gradients and Adam's two moments. Activations are unknown
    before the first batch, and not counted.

    Args:
        module: the module, before it is spread.
        total_bytes: the memory of each accelerator; None where it is unknown. Hosts are left
            out: other plans do not divide their memory.
        otherwise: the plan that puts less on each device; None on a rig of one device, which has no
            such plan.

    Returns:
        The plan, and its reason as the beginning of a layout's reason: empty, or ending in "; ".
    """
    known = [each for each in total_bytes if each is not None]
    states = dict.fromkeys([*module.parameters(), *module.buffers()])
    needed = sum(map(_training_bytes, states))
    if otherwise is None or not known or needed <= min(known):
        return Replicas(), ""
    return otherwise, (
        "parameters, gradients and Adam's state take "
        f"{format_bytes(needed)}, and the smallest device has {format_bytes(min(known))}; "
    )


def _training_bytes(state: Tensor) -> int:
    if isinstance(state, (UninitializedBuffer, UninitializedParameter)):  # a lazy layer's
        return 0
    if state.layout is not torch.strided:  # sparse: what FSDP2 and pipelines do not divide
        return 0
    return state.nbytes * (4 if state.requires_grad else 1)
