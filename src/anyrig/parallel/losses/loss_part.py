"""`LossPart`: the loss of one part of a batch, before it is divided."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossPart:
    """The loss of one part of a batch."""

    value: Tensor  # the part's sum; or a loss for each sample, if the criterion does not reduce
    count: Tensor | float | None  # what the part adds to the batch's divisor; None: no division
    reduced: bool  # whether `value` is a sum
    dtype: torch.dtype  # of the batch's loss
    shape: torch.Size | None = None  # of the output, if only the samples may differ between parts
    skips: bool = False  # whether what does not count has no gradient, whatever the divisor is
    # What means over targets divide by that are one term of the loss among others.
    targets: tuple[Tensor, ...] = ()

    def detach(self) -> LossPart:
        """Return this part without its graph."""
        count = self.count.detach() if isinstance(self.count, Tensor) else self.count
        return replace(self, value=self.value.detach(), count=count)
