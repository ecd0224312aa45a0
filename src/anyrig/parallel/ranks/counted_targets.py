"""The means over targets that ranks compute: the ranks add up the targets that count.

::

    rank 0   2 samples, 12 targets that count ──┐
    rank 1   2 samples,  3 targets that count ──┴──▶ 15: each rank scales its mean, so that the
                                                     gradients, weighted by samples, are right
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ..losses.means_of_parts import AddUp
from .exchange import Exchange, Phase


def counted_over_ranks(forward: Exchange, totals: list[Tensor], ranks_of_part: int = 1) -> AddUp:
    """Return a function for the means of one forward; all ranks must call it in the same order.

    The function takes the divisor of a mean over this rank's part, a tensor without dimensions. It
    returns the divisor of the mean over all parts, and this part's share of all samples. `totals`
    gets the sums, too. Each part is computed by `ranks_of_part` ranks. If a rank takes no mean
    where another takes one, both raise RankMismatchError.
    """

    def add_up(count: Tensor) -> tuple[Tensor, float]:
        forward.finish()
        own = count if forward.samples else torch.zeros_like(count)  # of stand-ins
        meeting = Exchange(
            forward.context,
            forward.model,
            forward.samples,
            own_loss=forward.own_loss,
            own_reduces=forward.own_reduces,
            forward=len(totals) + 1,
        )
        with forward.waiting():
            if count.device.type == "cpu":
                total = count.new_tensor(meeting.add(Phase.MEAN, float(own))[0])
            else:
                meeting.meet(Phase.MEAN)
                total = own.clone()
                dist.all_reduce(total)
        totals.append(total / ranks_of_part)
        return totals[-1], meeting.part * ranks_of_part

    return add_up
