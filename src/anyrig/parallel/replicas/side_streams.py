"""The streams for copies of parameters and gradients that overlap with computation."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import torch

from ...transfer.streams import using


class SideStreams(NamedTuple):
    """Two streams of one device, one for each direction of its links."""

    arriving: torch.Stream
    leaving: torch.Stream


@cache
def side_streams(device: torch.device) -> SideStreams:
    """Return the streams for copies to and from `device`, shared by all models."""
    return SideStreams(torch.Stream(device), torch.Stream(device))


def copy_across(
    pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], source: torch.device, target: torch.device
) -> None:
    """Copy the second tensor of each pair to the first, overlapping with computation.

    PyTorch copies on the source's current stream and synchronizes with the target's, so both
    streams are set.
    """
    with using(side_streams(source).leaving, side_streams(target).arriving):
        for place, value in pairs:
            place.copy_(value, non_blocking=True)
