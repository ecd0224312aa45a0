"""Choose the blocks of a model to recompute, so that a training step stays within a budget."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from ...errors import MemoryTrackingError
from ...units import format_bytes, format_count
from ..program_state import ProgramState
from .blocks import find_blocks, named_blocks
from .choose import choose_blocks, choose_least_peak
from .costs import UNREACHABLE_BYTES, Costs
from .forward import recompute_blocks
from .measure import StepRunner
from .plan import BlockCost, RecomputePlan

# After a choice ran out of memory, the peak of the next choice must be lower by this fraction.
_LESS = 0.02
# A choice is tried if its predicted peak exceeds the budget by at most this fraction.
_MORE = 0.02


def checkpoint_blocks(
    model: nn.Module,
    budget_bytes: int,
    step: Callable[[], object],
    *,
    blocks: Iterable[str] | None = None,
) -> RecomputePlan:
    """Recompute blocks of a model in the backward pass, so that a step stays within a budget.

    ::

        def step() -> None:
            criterion(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

        plan = anyrig.memory.checkpoint_blocks(model, 20 * 2**30, step)
        print(plan)

    Among all sets of blocks that keep the peak within the budget, the plan recomputes the set that
    takes the least time. `torch.utils.checkpoint` does the recomputation. The bytes and times are
    measured: the step runs five to seven times, and twice more for each choice whose measured peak
    is above the predicted peak.

    Afterwards the parameters, buffers and gradients of all modules, and the state of all
    optimizers, schedulers, `GradScaler`s and random number generators are as before. Statistics of
    peak memory are reset. An earlier plan of the model ends.

    Args:
        model: the model, with all parameters on one GPU, and not yet wrapped by `anyrig.spread`,
            DDP or FSDP.
        budget_bytes: the most bytes that PyTorch may have allocated on this GPU at any time of the
            step, including parameters and the state of optimizers
            (`torch.cuda.max_memory_allocated`).
        step: computes one training step, with the largest batch: forward, backward, and the
            optimizer's step. Each call must call the same blocks in the same order.
        blocks: the names of the modules that may be recomputed, as in `model.named_modules()`. None
            for the repeated modules in a ModuleList or Sequential that have children.

    Returns:
        The plan, already applied; ``print`` shows what it costs, and `RecomputePlan.remove` ends
        it.

    Raises:
        MemoryTrackingError: the step needs more bytes even with the best choice; the model has no
            such blocks; a block changes its input in place; the steps differ; or this process is
            one of several ranks.
        torch.OutOfMemoryError: the step does not fit on the GPU even with all blocks recomputed.
        Exception: any other exception of `step`. The state is restored first.
    """
    device = _check(model, budget_bytes)
    found = find_blocks(model) if blocks is None else named_blocks(model, blocks)
    if not found:
        raise MemoryTrackingError(
            "the model has no repeated modules in a ModuleList or Sequential; "
            "name the modules that may be recomputed: blocks=[...]"
        )
    recompute_blocks(model, [])
    state = ProgramState()
    runner = StepRunner(step, found, device, state)
    plan = None
    try:
        plan = _Planner(model, budget_bytes, runner, [*found], device).find_plan()
    finally:
        if plan is None:
            recompute_blocks(model, [])
        state.restore()
        torch.cuda.empty_cache()
    return plan


def _check(model: nn.Module, budget_bytes: int) -> torch.device:
    """Return the device of the model."""
    if budget_bytes < 1:
        raise MemoryTrackingError(
            f"budget_bytes={budget_bytes} is not a number of bytes; give 1 or more"
        )
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise MemoryTrackingError(
            f"this process is one of {dist.get_world_size()} ranks, whose plans could differ; find "
            "the plan in one process, and call recompute_blocks(model, plan.blocks) on every rank"
        )
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) != 1 or not devices[0].startswith("cuda"):
        raise MemoryTrackingError(
            f"the parameters of the model are on {', '.join(devices) or 'no device'}, and the plan "
            "is for one GPU: move the model, or give a part of it that is on one GPU. For a GPU "
            "that this machine does not have, run: anyrig rehearse --rig RTX4090 SCRIPT"
        )
    return torch.device(devices[0])


@dataclass(frozen=True)
class _Planner:
    """Measures the blocks, chooses those to recompute, and verifies the peak of the choice."""

    model: nn.Module
    budget_bytes: int
    runner: StepRunner
    names: Sequence[str]
    device: torch.device

    def find_plan(self) -> RecomputePlan:
        """Apply the cheapest choice whose measured peak is within the budget."""
        costs = self.runner.measure_costs()
        plan = self._find_within(costs)
        # Predictions may be too high: try the cheapest choice that is predicted a little above.
        chosen = choose_blocks(costs, math.floor(self.budget_bytes * (1 + _MORE)))
        if chosen is not None and _seconds(costs, chosen) < plan.extra_seconds:
            measured = self._apply(chosen)
            if measured is not None and measured[0] <= self.budget_bytes:
                return self._describe(costs, chosen, plan.reason, *measured)
            recompute_blocks(self.model, plan.blocks)
        return plan

    def _find_within(self, costs: Costs) -> RecomputePlan:
        """Apply the cheapest choice whose peak, predicted and measured, is within the budget."""
        aim_bytes = self.budget_bytes
        reason = f"the least time within {format_bytes(self.budget_bytes)}"
        while True:
            chosen = choose_blocks(costs, aim_bytes)
            is_last = chosen is None
            if chosen is None:
                chosen = choose_least_peak(costs)
            predicted_bytes = costs.peak_bytes(chosen)
            measured = self._apply(chosen)
            if measured is not None and measured[0] <= self.budget_bytes:
                return self._describe(costs, chosen, reason, *measured)
            if is_last:
                raise self._error(predicted_bytes if measured is None else measured[0], chosen)
            # The peak of the next choice must be lower by this choice's excess over the budget.
            if measured is None:
                reason = f"the least time that fits on {self.device}"
                aim_bytes = min(aim_bytes, predicted_bytes) - math.ceil(predicted_bytes * _LESS)
            else:
                aim_bytes = predicted_bytes - (measured[0] - self.budget_bytes)

    def _apply(self, chosen: Iterable[int]) -> tuple[int, float] | None:
        """Apply a choice; return its measured peak and time, or None if memory ran out."""
        recompute_blocks(self.model, [self.names[block] for block in sorted(chosen)])
        return self.runner.measure_steps()

    def _error(self, peak_bytes: int, chosen: Collection[int]) -> MemoryTrackingError:
        of = format_count(len(self.names), "block")
        return MemoryTrackingError(
            f"the step needs at least {peak_bytes} bytes ({format_bytes(peak_bytes)}) on "
            f"{self.device}, with {len(chosen)} of {of} recomputed; the "
            f"budget is {self.budget_bytes} bytes ({format_bytes(self.budget_bytes)}). Use a "
            "smaller batch, or name more or smaller modules: blocks=[...]"
        )

    def _describe(
        self, costs: Costs, chosen: frozenset[int], reason: str, peak_bytes: int, seconds: float
    ) -> RecomputePlan:
        kept_bytes = costs.peak_bytes(frozenset())
        return RecomputePlan(
            blocks=tuple(self.names[block] for block in sorted(chosen)),
            reason=reason if chosen else "the step fits without recomputation",
            budget_bytes=self.budget_bytes,
            peak_bytes=peak_bytes,
            kept_bytes=kept_bytes if kept_bytes < UNREACHABLE_BYTES else None,
            extra_seconds=_seconds(costs, chosen),
            step_seconds=seconds,
            costs=tuple(
                BlockCost(
                    self.names[block],
                    costs.saved_bytes[block],
                    costs.seconds[block],
                    block in chosen,
                )
                for block in costs.order
            ),
            device=self.device,
            _model=weakref.ref(self.model),
        )


def _seconds(costs: Costs, chosen: Iterable[int]) -> float:
    return sum(costs.seconds[block] for block in sorted(chosen))
