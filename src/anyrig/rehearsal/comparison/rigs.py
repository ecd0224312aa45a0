"""The rigs of a comparison, from their text."""

from __future__ import annotations

from ...errors import DeviceTextError
from ...virtual.rig import VirtualRig

# Each rig takes a rehearsal. More are a mistyped list.
MOST_RIGS = 32


def parse_rigs(text: str) -> tuple[VirtualRig, ...]:
    """Return the rigs that `text` names, separated by commas: ``4xA100-80GB,8xL4``.

    Raises:
        DeviceTextError: a part does not name a rig, a rig is named twice, or there are too many.
        UnknownHardwareError: there is no such GPU.
    """
    parts = text.split(",")
    if len(parts) > MOST_RIGS:
        raise DeviceTextError(f"{len(parts)} rigs are named; name at most {MOST_RIGS}")
    rigs = tuple(VirtualRig.parse(part.strip()) for part in parts)
    for number, rig in enumerate(rigs):
        if rig in rigs[:number]:
            raise DeviceTextError(f"the rig {rig} is named twice; name each rig once")
    return rigs
