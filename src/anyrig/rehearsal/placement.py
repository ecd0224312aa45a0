"""The placement of ranks on the nodes of a virtual rig and on their devices.

On a rig of several nodes, all ranks are processes of this machine, started by one launcher. The
launcher sets the variables that torchrun's agent would set on each rank's node::

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
    """The ranks of one virtual node.

    Attributes:
        environments: for each selected device, the environment variables of its ranks, which make
            all selected devices visible and name the rank's own.
        processes: the number of ranks on the node. With more ranks than devices, consecutive ranks
            share a device.
    """

    environments: tuple[Mapping[str, str], ...]
    processes: int

    def environment_of(self, local_rank: int) -> Mapping[str, str]:
        """Return the environment variables of the rank with the number `local_rank`."""
        own = LocalRank(local_rank, self.processes).device_index(len(self.environments))
        return self.environments[own]


@dataclass(frozen=True)
class Placement:
    """The ranks of each virtual node. Ranks are numbered node by node."""

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
        """Return the placement on the first `nodes` nodes of `rig`.

        Args:
            rig: the virtual nodes and their GPUs.
            device: the devices to use on each node, in the syntax of `Rig.parse`.
            count_ranks: a function from the selected devices of a node to its number of ranks.
            nodes: the number of nodes that take part.
            environment: variables whose ``CUDA_VISIBLE_DEVICES`` hides GPUs on each node.

        Raises:
            DeviceTextError: a node has no such device.
            DeviceFailedError: a selected device is hidden.
        """
        visibility = read_visibility(environment)
        placed = []
        for node in range(nodes):
            chosen = _choose(device, rig.devices_of_node(node), visibility)
            placed.append(NodeRanks(tuple(environments_of_ranks(chosen)), count_ranks(chosen)))
        return cls(tuple(placed))

    @property
    def processes(self) -> int:
        """The number of ranks on all nodes."""
        return sum(node.processes for node in self.nodes)

    @property
    def local_ranks(self) -> list[int]:
        """The local rank of each rank, in the order of ranks."""
        return [rank for node in self.nodes for rank in range(node.processes)]

    def environment_of(self, rank: int) -> dict[str, str]:
        """Return the environment variables that give `rank` its node, local rank and devices."""
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
        raise ValueError(f"there is no rank {rank}; the ranks are 0 to {self.processes - 1}")

    @classmethod
    def parse(cls, text: str) -> Placement:
        """Return the placement whose `str` is `text`."""
        return cls(
            tuple(
                NodeRanks(tuple(node["environments"]), node["processes"])
                for node in json.loads(text)
            )
        )

    def __str__(self) -> str:
        return json.dumps([asdict(node) for node in self.nodes])


def _choose(
    text: str, gpus: tuple[VirtualDevice, ...], visibility: Visibility
) -> tuple[Device, ...]:
    """Return the devices that `Rig.parse` would select in a process with `gpus`.

    `Rig.parse` itself imports torch, which the script must do first.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    shown = visibility.select(tuple(by_uuid))
    present = (
        *(_as_device(by_uuid[uuid], index) for index, uuid in enumerate(shown)),
        *(
            _as_device(gpu, None, error=f"hidden by {VARIABLE}={visibility.text!r}")
            for gpu in gpus
            if gpu.uuid not in shown
        ),
        Device("cpu", None, "CPU"),
    )
    if text == AUTO:
        return order_by_strength(usable(present))[0]
    chosen = select_devices(text, present)
    for device in chosen:
        device.require_usable()
    return order_by_strength(chosen)[0] if text == "all" else chosen


def _as_device(gpu: VirtualDevice, index: int | None, error: str | None = None) -> Device:
    return Device(
        "cuda",
        index,
        gpu.name,
        uuid=gpu.uuid,
        capability=gpu.capability,
        total_bytes=gpu.memory_bytes,
        spec=gpu.spec,
        error=error,
    )
