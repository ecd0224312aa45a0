"""How a module is spread over a rig, and why."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..devices.place import Place
from ..devices.rig import Rig
from ..transfer.move import resolve_device
from .plans import Pipeline, Plan, Shards
from .precision import explain_precision
from .shares.shares import Shares, choose_shares

if TYPE_CHECKING:
    from ..processes.group.membership import Group
    from .engines.pipeline.stage_table import StageTable


@dataclass(frozen=True)
class Layout:
    """How a module was spread; ``str(layout)`` explains it.

    Attributes:
        devices: the devices in order; the first is the lead, which has the module itself.
        plan: what each device or rank has; one device calls the module unchanged.
        reason: why the module was spread this way.
        shares: the part of each batch that each device gets, and why.
        output_device: where outputs are gathered.
        dim: the dimension along which batches are divided.
        loss: how the loss of a batch is combined from the losses of its parts; None without a
            loss.
        group: the process group; None in one process.
        blocks: the names of the layers that are gathered one at a time, if parameters are sharded.
        precision: the dtype of autocast; None computes in the dtype of the parameters.
        accumulate: whether gradients are those of the mean over all samples since `zero_grad()`.
        pipeline: the stages and their schedule, if layers are divided.
        is_chosen: whether `spread` has chosen the plan.
        processes: why no processes compute the model, which has a chosen plan; None otherwise.
        exact: the number of logical shards and their cost, in words; None without them.
    """

    devices: tuple[torch.device, ...]
    plan: Plan
    reason: str
    shares: Shares
    output_device: torch.device
    dim: int = 0
    loss: str | None = None
    group: Group | None = None
    blocks: tuple[str, ...] = ()
    precision: torch.dtype | None = None
    accumulate: bool = False
    pipeline: StageTable | None = None
    is_chosen: bool = False
    processes: str | None = None
    exact: str | None = None

    @property
    def lead(self) -> torch.device:
        """The device of the module itself."""
        return self.devices[0]

    @property
    def way(self) -> str:
        """``"alone"``, or what each device or rank has: replicas, shards or a pipeline's stages."""
        return "alone" if self.group is None and len(self.devices) == 1 else self.plan.noun

    def __str__(self) -> str:
        options = "" if self.loss is None else f"\nloss on the outputs' devices: {self.loss}"
        if self.precision is not None:
            options += f"\nprecision: {explain_precision(self.precision)}"
        if self.accumulate:
            options += "\naccumulate: gradients of the mean over all samples since zero_grad()"
        if self.processes is not None:
            options += f"\nprocesses: {self.processes}"
        if self.exact is not None:
            options += f"\nthe same bits on any number of ranks: {self.exact}"
        if self.group is not None:
            return self._describe_group(self.group) + options
        places = ", ".join(map(str, self.devices))
        if self.pipeline is not None:
            return (
                f"{self.way} on {places}: {self.reason}\n{self.pipeline}\n"
                f"outputs on {self.output_device}, divided along dimension {self.dim}{options}"
            )
        shares = f"shares: {self.shares}\n" if len(self.devices) > 1 else ""
        return (
            f"{self.way} on {places}: {self.reason}\n{shares}"
            f"outputs on {self.output_device}, divided along dimension {self.dim}{options}"
        )

    def computing(self) -> AbstractContextManager[object]:
        """Return the context in which forward and loss are computed."""
        if self.precision is None:
            return nullcontext()
        return torch.autocast(self.lead.type, self.precision)

    def _describe_group(self, group: Group) -> str:
        blocks = ", ".join(self.blocks) or "none found: all parameters are gathered at once"
        return (
            f"{self.way} over {group.world_size} ranks, this one on {self.lead}: {self.reason}\n"
            f"rank {group.rank}, collectives by {group.backend}: {group.reason}\n"
            f"shares: {self.shares.reason}"
            + (f"\nblocks: {blocks}" if isinstance(self.plan, Shards) else "")
            + ("" if self.pipeline is None else f"\n{self.pipeline}")
        )


def make_layout(
    rig: Rig,
    plan: Plan,
    output_device: Place | None,
    dim: int,
) -> Layout:
    """Return how a module is spread over a rig; raise SharesError if its shares do not fit."""
    devices = tuple(resolve_device(device) for device in rig)
    if isinstance(plan, Pipeline):
        shares = Shares((1.0,) * len(devices), "all samples on each")
    else:
        shares = choose_shares(getattr(plan, "shares", "auto"), rig.devices)
    alone = len(devices) == 1
    return Layout(
        devices=devices,
        plan=plan,
        reason=f"there is one device ({rig.reason})" if alone else rig.reason,
        shares=shares,
        output_device=devices[0] if output_device is None else resolve_device(output_device),
        dim=dim,
    )
