"""`AssumedRanks`: the ranks of a rehearsal in which rank 0 ran alone."""

from __future__ import annotations

from dataclasses import dataclass

from ..virtual.rig import NETWORK_BYTES_PER_SECOND, VirtualRig

# The names of links in text.
_LINKS = {"nvlink": "NVLink", "pcie": "PCIe"}


@dataclass(frozen=True)
class AssumedRanks:
    """The ranks that rank 0 stands for, and the links between them. Rates are for one direction.

    Attributes:
        ranks: the number of ranks, including rank 0.
        nodes: the number of nodes.
        link: the kind of link between the GPUs of a node: ``"NVLink"`` or ``"PCIe"``.
        link_bytes_per_second: the published rate of that link.
        network_bytes_per_second: each GPU's share of the network between nodes.
        network_is_assumed: whether `--rig` names no rate for the network, so that a default is
            used.
    """

    ranks: int
    nodes: int
    link: str
    link_bytes_per_second: float
    network_bytes_per_second: float
    network_is_assumed: bool

    @classmethod
    def on(cls, rig: VirtualRig) -> AssumedRanks:
        """Return the ranks of a program with one rank per GPU of `rig`, whose GPUs are equal."""
        spec = rig.devices[0].rates
        has_link = spec.link_bytes_per_second is not None
        return cls(
            len(rig.devices),
            rig.node_count,
            _LINKS.get(spec.link, spec.link) if has_link else "PCIe",
            spec.link_bytes_per_second or spec.pcie_bytes_per_second,
            rig.network_bytes_per_second,
            rig.network_bytes_per_second == NETWORK_BYTES_PER_SECOND,
        )
