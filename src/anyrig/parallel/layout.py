"""How a module lies on a rig, and why."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..devices.place import Place
from ..devices.rig import Rig
from ..errors import SpreadError
from ..transfer.move import resolve_device
from .precision import explain_precision
from .replicas.transparent import TransparentModule
from .shares.shares import Shares, choose_shares

if TYPE_CHECKING:
    from ..processes.group.membership import Group


@dataclass(frozen=True)
class Layout:
    """How a module was spread; its text is for people.

    Attributes:
        devices: in order; the first is the lead, where the module itself lies.
        how: ``"replicate"`` (a replica on each device, or on each rank of `group`, and a part of
            the batch for each), ``"shard"`` (the same, with a part of every parameter on each
            rank), or ``"alone"`` (one device: the module is called as it is).
        reason: why so.
        shares: the part of each batch that each device gets, and why.
        output_device: where results are gathered.
        dim: the dimension along which batches are divided.
        loss: in words how the loss of a batch is made of those of its parts; None without a loss.
        group: the process group whose ranks work together; None in one process.
        blocks: the names of the layers that are gathered one at a time, if parameters are sharded.
        precision: the dtype of autocast; None computes in the dtype of the parameters.
        accumulate: whether gradients are of the mean over all samples since `zero_grad()`.
    """

    devices: tuple[torch.device, ...]
    how: str
    reason: str
    shares: Shares
    output_device: torch.device
    dim: int = 0
    loss: str | None = None
    group: Group | None = None
    blocks: tuple[str, ...] = ()
    precision: torch.dtype | None = None
    accumulate: bool = False

    @property
    def lead(self) -> torch.device:
        """The device of the module itself."""
        return self.devices[0]

    def __str__(self) -> str:
        loss = "" if self.loss is None else f"\nloss beside the outputs: {self.loss}"
        if self.precision is not None:
            loss += f"\nprecision: {explain_precision(self.precision)}"
        if self.accumulate:
            loss += "\naccumulate: gradients of the mean over all samples since zero_grad()"
        if self.group is not None:
            return self._describe_group(self.group) + loss
        places = ", ".join(map(str, self.devices))
        return (
            f"{self.how} on {places}: {self.reason}\n"
            f"shares: {self.shares}\n"
            f"results on {self.output_device}, divided along dimension {self.dim}{loss}"
        )

    def computing(self) -> AbstractContextManager[object]:
        """Return the context in which forward and loss are computed."""
        if self.precision is None:
            return nullcontext()
        return torch.autocast(self.lead.type, self.precision)

    def _describe_group(self, group: Group) -> str:
        blocks = ", ".join(self.blocks) or "none found: all parameters are gathered at once"
        return (
            f"{self.how} over {group.world_size} ranks, this one on {self.lead}: {self.reason}\n"
            f"rank {group.rank}, collectives by {group.backend}: {group.reason}\n"
            f"shares: {self.shares.reason}"
        ) + (f"\nblocks: {blocks}" if self.how == "shard" else "")


def make_layout(
    rig: Rig,
    shares: str | Sequence[float] | Shares | None,
    output_device: Place | None,
    dim: int,
) -> Layout:
    """Return how a module is spread over a rig.

    Raises:
        SharesError: there are not as many shares as devices.
    """
    devices = tuple(resolve_device(device) for device in rig)
    chosen = choose_shares(shares, rig.devices)
    alone = len(devices) == 1
    return Layout(
        devices=devices,
        how="alone" if alone else "replicate",
        reason=f"there is one device ({rig.reason})" if alone else rig.reason,
        shares=chosen,
        output_device=devices[0] if output_device is None else resolve_device(output_device),
        dim=dim,
    )


def explain(model: torch.nn.Module) -> Layout:
    """Return how `spread` laid a model on its devices, and why; print it.

    While shares are being measured, in the first steps, it is as of the last one.

    Raises:
        SpreadError: `model` was not spread.
    """
    if not isinstance(model, TransparentModule):
        raise SpreadError(
            f"this {type(model).__name__} was not spread; pass what anyrig.spread() returned"
        )
    layout: Layout = model._layout
    return layout
