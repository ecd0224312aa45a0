"""Make models that DDP, FSDP2 or `spread` wraps ready for a step after a failed step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from ..errors import MemoryTrackingError
from ..observe.census import find_instances
from .torch_versions import fsdp_undoes_failed_steps


def check_wrapped_models() -> None:
    """Raise MemoryTrackingError if a failed step of a wrapped model could not be undone."""
    if any(ddp.static_graph for ddp in _find_ddps()):
        raise MemoryTrackingError(
            "DDP with static_graph=True learns the graph in its first step, and cannot learn it "
            "again if that step fails; leave out static_graph"
        )
    if _find_sharded() and not fsdp_undoes_failed_steps():
        raise MemoryTrackingError(
            f"FSDP2 of PyTorch {torch.__version__} cannot undo a failed step; install torch 2.13 "
            "or newer, or use DDP"
        )


def average_samples() -> bool:
    """Return whether models average gradients over the samples of all ranks, as `spread` does.

    DDP and FSDP2 alone average over the ranks.
    """
    return any(True for _ in _find_engines())


def have_global_loss() -> bool:
    """Return whether spread models return the loss of all ranks' samples, on every rank."""
    return any(engine.loss is not None for engine in _find_engines())


def undo_failed_step() -> None:
    """Make the models of this rank ready for another step; every rank must call this.

    Parameters of FSDP2 are sharded again. DDP allocates new buckets in the next forward pass,
    because the failed step may have ended while DDP allocated them on only one rank.

    Raises:
        MemoryTrackingError: a model holds gradients of earlier steps that are not yet reduced.
    """
    for engine in _find_engines():
        engine.begin_step_again()
    for module in _find_sharded():
        if module._get_fsdp_state()._is_root:  # None before the first forward
            _reset_root(module)
    # All functions of the reducer are private; test_torch_names.py notices a change.
    for ddp in _find_ddps():
        ddp.reducer._reset_state()
        ddp.reducer._push_all_rebuilt_params()


def _reset_root(root: Any) -> None:
    # FSDP2's states, groups and parameters are private; test_torch_names.py notices a change.
    groups = [
        group
        for state in root._get_fsdp_state()._state_ctx.all_states
        for group in state._fsdp_param_groups
    ]
    if not all(group.reduce_grads and group.all_reduce_grads for group in groups):
        raise MemoryTrackingError(
            "when a step fails, FSDP2 drops the gradients that set_requires_gradient_sync(False) "
            "left unreduced; leave out this call, and give survive() the whole batch"
        )
    root.reset_iter_state()
    for group in groups:
        for held in group.fsdp_params:
            # `reset_iter_state` keeps the memory of parameters that were being gathered, and
            # gradients that were not yet reduced. With tensor parallelism these are DTensors, which
            # `StepState` does not find.
            held.free_unsharded_param()
            gathered: nn.Parameter | None = getattr(held, "_unsharded_param", None)
            if gathered is not None:
                gathered.grad = None


def let_gradients_order_buckets() -> None:
    """Let DDP order its buckets as gradients arrive in the next backward pass.

    After `undo_failed_step`, the buckets have the order of the parameters, and no reduction
    overlaps with the backward pass.
    """
    for ddp in _find_ddps():
        ddp.reducer._reset_state()


def _find_ddps() -> list[Any]:
    found: list[Any] = find_instances(DistributedDataParallel)[DistributedDataParallel]
    return found


def _find_engines() -> Iterator[Any]:
    """Yield what exchanges with other ranks in its own way for a module, as spread modules do."""
    for module in find_instances(nn.Module)[nn.Module]:
        engine = vars(module).get("_engine")
        if hasattr(type(engine), "begin_step_again"):
            yield engine


def _find_sharded() -> list[Any]:
    found: list[Any] = find_instances(FSDPModule)[FSDPModule]
    return found
