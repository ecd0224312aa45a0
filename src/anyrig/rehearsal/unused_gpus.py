"""Find and describe the GPUs of a rig that a program of one process did not use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..devices.visibility import VARIABLE
from ..virtual.rig import VirtualRig
from .facts import Facts
from .process_record import ProcessRecord


def find_unused(
    rig: VirtualRig, processes: Sequence[ProcessRecord], environment: Mapping[str, str]
) -> tuple[int, ...]:
    """Return the CUDA indices of the GPUs that a program could use and did not.

    Returns nothing if several processes used GPUs, as what each was to use is not known, or if the
    user hides GPUs.
    """
    if len(processes) != 1 or VARIABLE in environment:
        return ()
    used = {device.index for device in processes[0].devices}
    return tuple(sorted(set(range(len(rig.devices_of_node(0)))) - used))


def describe_unused(facts: Facts) -> list[str]:
    """Return that the unused GPUs were not used, and what to do."""
    used = ", ".join(f"cuda:{device.index}" for device in facts.devices)
    rig = VirtualRig.parse("+".join(device.gpu for device in facts.devices))
    return [
        f"not used: the script computes on {used} only. Rehearse it with --rig {rig}, or spread",
        "the model over all GPUs: model = anyrig.spread(model); see docs/your_machine.md",
    ]


def name_unused(facts: Facts) -> str:
    """Return the names of the unused GPUs: ``"cuda:1"``, ``"cuda:1-3"`` or ``"cuda:0,2"``."""
    first, *others = facts.unused_devices
    last = facts.unused_devices[-1]
    if len(others) > 1 and last - first == len(others):
        return f"cuda:{first}-{last}"
    return f"cuda:{','.join(map(str, facts.unused_devices))}"
