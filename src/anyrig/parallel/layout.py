"""How a module lies on a rig, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .shares.shares import Shares


@dataclass(frozen=True)
class Layout:
    """How a module was spread; its text is for people.

    Attributes:
        devices: in order; the first is the lead, where the module itself lies.
        how: ``"replicate"`` (a replica on each device, a share of the batch for each), or
            ``"alone"`` (one device: the module is called as it is).
        reason: why so.
        shares: the part of each batch that each device gets, and why.
        output_device: where results are gathered.
        dim: the dimension along which batches are divided.
        loss: in words how the loss of a batch is made of those of its parts; None without a loss.
    """

    devices: tuple[torch.device, ...]
    how: str
    reason: str
    shares: Shares
    output_device: torch.device
    dim: int = 0
    loss: str | None = None

    @property
    def lead(self) -> torch.device:
        """The device of the module itself."""
        return self.devices[0]

    def __str__(self) -> str:
        loss = "" if self.loss is None else f"\nloss beside the outputs: {self.loss}"
        places = ", ".join(map(str, self.devices))
        return (
            f"{self.how} on {places}: {self.reason}\n"
            f"shares: {self.shares}\n"
            f"results on {self.output_device}, divided along dimension {self.dim}{loss}"
        )
