"""The rigs that `anyrig fit` tries."""

from __future__ import annotations

from ..hardware.spec import specs
from ..rehearsal.comparison.rigs import parse_rigs
from ..virtual.rig import VirtualRig

ALL = "all"


def read_rigs(text: str) -> tuple[VirtualRig, ...]:
    """Return the rigs that `text` names, separated by commas, or one of each known GPU for ``all``.

    Raises:
        DeviceTextError: a part does not name a rig, a rig is named twice, or there are too many.
        UnknownHardwareError: there is no such GPU.
    """
    if text.strip().casefold() != ALL:
        return parse_rigs(text)
    keys = [key for key, spec in specs().items() if spec.capability is not None]
    return tuple(map(VirtualRig.parse, keys))
