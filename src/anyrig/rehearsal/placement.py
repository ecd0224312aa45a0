"""Which ranks are on which of a rig's machines, and with which of their devices.

On a rig of several nodes all ranks are processes of this machine, children of one launcher. Each is
told that it is on its virtual node, as the agent of that node would tell it::

    rig (2xA100-80GB)+(T4)    RANK             0         1         2
                              GROUP_RANK       0         0         1
                              LOCAL_RANK       0         1         0
                              LOCAL_WORLD_SIZE 2         2         1
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ..devices.device import Device
from ..devices.environment import environment_for
from ..devices.rig import order_by_strength
from ..devices.text import select_devices
from ..virtual.rig import VirtualDevice, VirtualRig


@dataclass(frozen=True)
class NodeRanks:
    """The ranks of one virtual machine.

    Attributes:
        processes: how many.
        environment: the variables that show them the chosen devices.
    """

    processes: int
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Placement:
    """The ranks of each virtual machine; ranks are numbered from the first machine on."""

    nodes: tuple[NodeRanks, ...]

    @classmethod
    def on(
        cls, rig: VirtualRig, device: str = "auto", processes_per_device: int = 1, nodes: int = 1
    ) -> Placement:
        """Return the ranks on the first `nodes` machines of `rig`.

        Args:
            rig: the virtual machines and their cards.
            device: what `Rig.parse` reads, the same text for each of the machines.
            processes_per_device: ranks on each chosen card.
            nodes: how many machines take part.

        Raises:
            DeviceTextError: a machine has no such device.
        """
        placed = []
        for node in range(nodes):
            chosen = _choose(device, rig.devices_of_node(node))
            placed.append(NodeRanks(len(chosen) * processes_per_device, environment_for(chosen)))
        return cls(tuple(placed))

    @property
    def processes(self) -> int:
        """How many ranks there are in all."""
        return sum(node.processes for node in self.nodes)

    def environment_of(self, rank: int) -> dict[str, str]:
        """Return what tells a rank its machine and its place there, and shows it the devices."""
        before = 0
        for number, node in enumerate(self.nodes):
            if rank < before + node.processes:
                return {
                    **node.environment,
                    "LOCAL_RANK": str(rank - before),
                    "LOCAL_WORLD_SIZE": str(node.processes),
                    "GROUP_RANK": str(number),
                    "GROUP_WORLD_SIZE": str(len(self.nodes)),
                }
            before += node.processes
        raise ValueError(f"rank {rank} of {self.processes}, counted from 0")

    @classmethod
    def parse(cls, text: str) -> Placement:
        """Return the placement that `str` made a text of."""
        return cls(tuple(NodeRanks(**node) for node in json.loads(text)))

    def __str__(self) -> str:
        return json.dumps([asdict(node) for node in self.nodes])


def _choose(text: str, cards: tuple[VirtualDevice, ...]) -> tuple[Device, ...]:
    """Return what `Rig.parse` would in a process that has these cards.

    It is not asked itself, since it asks PyTorch, which is the script's to import.
    """
    present = tuple(_as_device(card, index) for index, card in enumerate(cards))
    if text in ("auto", "all"):
        return order_by_strength(present)[0]
    return select_devices(text, (*present, Device("cpu", None, "CPU")))


def _as_device(card: VirtualDevice, index: int) -> Device:
    return Device(
        "cuda",
        index,
        card.name,
        uuid=card.uuid,
        capability=card.capability,
        total_bytes=card.memory_bytes,
        spec=card.spec,
    )
