"""The arguments of `spread` other than the module, the devices and the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..devices.place import Place
from .losses.loss import Criterion

if TYPE_CHECKING:
    from .engines.pipeline.split.arguments import Call


@dataclass(frozen=True)
class Asked:
    """What a caller of `anyrig.spread` wants, with any plan.

    Attributes:
        plan_reason: what the environment variables say of the plan and the precision, as the
            beginning of a layout's reason: empty, or ending in "; ".
    """

    loss: Criterion | None = None
    dim: int = 0
    output_device: Place | None = None
    precision: str | torch.dtype | None = None
    accumulate: bool = False
    plan_reason: str = ""
    example: Call | None = None
