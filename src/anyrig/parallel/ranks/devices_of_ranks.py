"""The devices of a group's ranks, on every rank."""

from __future__ import annotations

from ...devices.as_json import read_device, write_device
from ...devices.device import Device
from ...processes.group.board import board_of
from ...processes.group.membership import Group


def devices_of_ranks(
    group: Group, own: Device, timeout_seconds: float, caller: str
) -> list[Device]:
    """Return the device of each rank; every rank must call this with its own.

    Args:
        group: the ranks.
        own: the device of this rank.
        timeout_seconds: how long to wait for another rank.
        caller: the function of the user's program, for the error.

    Raises:
        RankWaitError: another rank did not come in time.
    """
    texts = board_of(group).exchange("devices", write_device(own), timeout_seconds, caller)
    return [read_device(text) for text in texts]
