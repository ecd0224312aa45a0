"""What `spread` was asked for beside the module, the devices and the plan."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..devices.place import Place
from .losses.loss import Criterion


@dataclass(frozen=True)
class Asked:
    """The arguments of `anyrig.spread` that have the same meaning with each plan."""

    loss: Criterion | None = None
    dim: int = 0
    output_device: Place | None = None
    precision: str | torch.dtype | None = None
    accumulate: bool = False
