"""The path between two devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from . import nvml
from .device import Device


@dataclass(frozen=True)
class Link:
    """The path between two devices; unknown values are None.

    Attributes:
        first, second: the two ends.
        peer_access: whether each can read the other's memory directly.
        kind: the kind of the path: ``"nvlink"``, ``"pcie"``, …
        bytes_per_second: the peak rate in one direction.
    """

    first: Device
    second: Device
    peer_access: bool | None
    kind: str | None
    bytes_per_second: float | None


def find_links(devices: tuple[Device, ...]) -> tuple[Link, ...]:
    """Return the link of every pair of `devices`."""
    return tuple(_find_link(*pair) for pair in itertools.combinations(devices, 2))


def _find_link(first: Device, second: Device) -> Link:
    path = nvml.link(first.uuid, second.uuid) if first.uuid and second.uuid else None
    return Link(
        first,
        second,
        peer_access=_peer_access(first, second),
        kind=path.kind if path else None,
        bytes_per_second=path.bytes_per_second if path else None,
    )


def _peer_access(first: Device, second: Device) -> bool | None:
    import torch

    module = torch.get_device_module(first.torch_device)
    ask = getattr(module, "can_device_access_peer", None)
    if ask is None or first.index is None or second.index is None:
        return None
    return reach_each_other(ask, first.index, second.index)


def reach_each_other(ask: Callable[[int, int], bool], first: int, second: int) -> bool | None:
    """Return whether `ask` is true in both directions, or None if it fails."""
    try:
        return bool(ask(first, second) and ask(second, first))
    except RuntimeError:
        return None
