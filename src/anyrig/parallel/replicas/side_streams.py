"""The streams on which parameters and gradients travel, beside the computation."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import torch

from ...transfer.streams import using


class SideStreams(NamedTuple):
    """Two streams of one device: links carry both directions at once, and so must a chain."""

    arriving: torch.Stream
    leaving: torch.Stream


@cache
def side_streams(device: torch.device) -> SideStreams:
    """Return the streams for copies to and from `device`, the same ones for every model."""
    return SideStreams(torch.Stream(device), torch.Stream(device))


def copy_across(
    pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], source: torch.device, target: torch.device
) -> None:
    """Copy between two devices beside what they compute, to the first of each pair.

    PyTorch runs the copy on the current stream of the source's device and has it wait for, and be
    waited for by, that of the target's; so both are replaced.
    """
    with using(side_streams(source).leaving, side_streams(target).arriving):
        for place, value in pairs:
            place.copy_(value, non_blocking=True)
