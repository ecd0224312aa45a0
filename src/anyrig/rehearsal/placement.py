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
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from ..devices.device import Device
from ..devices.environment import environments_of_ranks
from ..devices.inventory import usable
from ..devices.rank import LocalRank
from ..devices.rig import AUTO, order_by_strength
from ..devices.text import select_devices
from ..devices.visibility import VARIABLE, Visibility, read_visibility
from ..virtual.rig import VirtualDevice, VirtualRig


@dataclass(frozen=True)
class NodeRanks:
    """The ranks of one virtual machine.

    Attributes:
        environments: for each chosen device, the variables of its ranks. They show a rank all
            chosen devices and name its own.
        processes: how many ranks there are; neighbours share a device.
    """

    environments: tuple[Mapping[str, str], ...]
    processes: int

    def environment_of(self, local_rank: int) -> Mapping[str, str]:
        """Return the variables that show a rank the devices, and its own."""
        own = LocalRank(local_rank, self.processes).device_index(len(self.environments))
        return self.environments[own]


@dataclass(frozen=True)
class Placement:
    """The ranks of each virtual machine; ranks are numbered from the first machine on."""

    nodes: tuple[NodeRanks, ...]

    @classmethod
    def on(
        cls,
        rig: VirtualRig,
        device: str = AUTO,
        count_ranks: Callable[[Sequence[Device]], int] = len,
        nodes: int = 1,
        environment: Mapping[str, str] = os.environ,
    ) -> Placement:
        """Return the ranks on the first `nodes` machines of `rig`.

        Args:
            rig: the virtual machines and their cards.
            device: what `Rig.parse` reads, the same text for each of the machines.
            count_ranks: how many ranks a machine has of which these devices were chosen.
            nodes: how many machines take part.
            environment: its ``CUDA_VISIBLE_DEVICES`` hides cards of each of the machines.

        Raises:
            DeviceTextError: a machine has no such device.
            DeviceFailedError: the device is hidden.
        """
        visibility = read_visibility(environment)
        placed = []
        for node in range(nodes):
            chosen = _choose(device, rig.devices_of_node(node), visibility)
            placed.append(NodeRanks(tuple(environments_of_ranks(chosen)), count_ranks(chosen)))
        return cls(tuple(placed))

    @property
    def processes(self) -> int:
        """How many ranks there are in all."""
        return sum(node.processes for node in self.nodes)

    @property
    def local_ranks(self) -> list[int]:
        """The number of each rank on its own machine."""
        return [rank for node in self.nodes for rank in range(node.processes)]

    def environment_of(self, rank: int) -> dict[str, str]:
        """Return what tells a rank its machine and its place there, and shows it the devices."""
        before = 0
        for number, node in enumerate(self.nodes):
            if rank < before + node.processes:
                return {
                    **node.environment_of(rank - before),
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
        return cls(
            tuple(
                NodeRanks(tuple(node["environments"]), node["processes"])
                for node in json.loads(text)
            )
        )

    def __str__(self) -> str:
        return json.dumps([asdict(node) for node in self.nodes])


def _choose(
    text: str, cards: tuple[VirtualDevice, ...], visibility: Visibility
) -> tuple[Device, ...]:
    """Return what `Rig.parse` would in a process that has these cards.

    `Rig.parse` itself asks PyTorch, which is the script's to import.
    """
    by_uuid = {card.uuid: card for card in cards}
    shown = visibility.select(tuple(by_uuid))
    present = (
        *(_as_device(by_uuid[uuid], index) for index, uuid in enumerate(shown)),
        *(
            _as_device(card, None, error=f"hidden by {VARIABLE}={visibility.text!r}")
            for card in cards
            if card.uuid not in shown
        ),
        Device("cpu", None, "CPU"),
    )
    if text == AUTO:
        return order_by_strength(usable(present))[0]
    chosen = select_devices(text, present)
    for device in chosen:
        device.require_usable()
    return order_by_strength(chosen)[0] if text == "all" else chosen


def _as_device(card: VirtualDevice, index: int | None, error: str | None = None) -> Device:
    return Device(
        "cuda",
        index,
        card.name,
        uuid=card.uuid,
        capability=card.capability,
        total_bytes=card.memory_bytes,
        spec=card.spec,
        error=error,
    )
