"""`AssumedRanks`: the ranks of a rehearsal in which rank 0 ran alone."""

from __future__ import annotations

from dataclasses import dataclass

from ..virtual.rig import NETWORK_BYTES_PER_SECOND, VirtualRig

# The names of links in text.
_LINKS = {"nvlink": "NVLink", "pcie": "PCIe"}


@dataclass(frozen=True)
class AssumedRanks:
    """The ranks for which rank 0 stands, and what joins them. Rates are for one direction.

    Attributes:
        ranks: how many there are, with rank 0.
        nodes: on how many nodes.
        link: what joins the GPUs of a node: ``"NVLink"`` or ``"PCIe"``.
        link_bytes_per_second: its published rate.
        network_bytes_per_second: each GPU's share of the network between nodes.
        network_is_assumed: whether that is the default rate, which `--rig` does not name.
    """

    ranks: int
    nodes: int
    link: str
    link_bytes_per_second: float
    network_bytes_per_second: float
    network_is_assumed: bool

    @classmethod
    def on(cls, rig: VirtualRig) -> AssumedRanks:
        """Return the ranks of a rank on each GPU of `rig`, whose GPUs are equal."""
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
