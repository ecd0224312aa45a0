"""Which blocks of a model are recomputed, and what this saves and costs."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import torch
from torch import nn

from ...units import format_bytes, format_count
from .forward import recompute_blocks


@dataclass(frozen=True)
class BlockCost:
    """What one block saves and costs if it is recomputed.

    Attributes:
        name: the name of the module in the model.
        saved_bytes: how much less memory is allocated from the block's forward pass to its
            backward pass.
        seconds: the time of its recomputations in one step.
        recomputed: whether the plan recomputes it.
    """

    name: str
    saved_bytes: int
    seconds: float
    recomputed: bool


@dataclass(frozen=True)
class RecomputePlan:
    """The blocks of a model that are recomputed, and what this saves and costs.

    Attributes:
        blocks: the names of the recomputed blocks, for `recompute_blocks`.
        reason: why the plan recomputes these blocks.
        budget_bytes: the budget of `checkpoint_blocks`.
        peak_bytes: the peak of two measured steps, with the plan applied.
        kept_bytes: the predicted peak without recomputation; None if such a step ran out of
            memory.
        extra_seconds: the time of all recomputations in one step.
        step_seconds: the time of a measured step, with the plan applied.
        costs: the costs of all blocks, in the order of their calls.
        device: the GPU of the model.
    """

    blocks: tuple[str, ...]
    reason: str
    budget_bytes: int
    peak_bytes: int
    kept_bytes: int | None
    extra_seconds: float
    step_seconds: float
    costs: tuple[BlockCost, ...]
    device: torch.device
    _model: weakref.ref[nn.Module] = field(repr=False, compare=False)

    @property
    def extra_percent(self) -> float:
        """How much longer a step takes than without recomputation, in percent."""
        before = self.step_seconds - self.extra_seconds
        return 100 * self.extra_seconds / before if before > 0 else 0.0

    def remove(self) -> None:
        """Stop recomputing blocks of the model."""
        model = self._model()
        if model is not None:
            recompute_blocks(model, [])

    def __str__(self) -> str:
        """Return the plan, what it costs, and a line for each block."""
        without = "" if self.kept_bytes is None else f", without: {format_bytes(self.kept_bytes)}"
        lines = [
            f"recompute {len(self.blocks)} of {format_count(len(self.costs), 'block')}: "
            f"{self.reason}",
            f"peak on {self.device}: {format_bytes(self.peak_bytes)} of "
            f"{format_bytes(self.budget_bytes)}{without}",
            f"time: {1000 * self.extra_seconds:.2f} ms more per step, {self.extra_percent:.1f} %",
        ]
        width = max((len(cost.name) for cost in self.costs), default=0)
        for cost in self.costs:
            lines.append(
                f"  {cost.name:{width}}  saves {format_bytes(cost.saved_bytes):>11}  "
                f"costs {1000 * cost.seconds:8.2f} ms  "
                f"{'recomputed' if cost.recomputed else 'kept'}"
            )
        return "\n".join(lines)
