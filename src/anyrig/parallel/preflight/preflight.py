"""All checks of this machine, and with several machines of all of them together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...devices.rig import Rig
from ...errors import LaunchError
from ..ranks.route import is_host_of
from .bandwidth import check_all_reduce
from .finding import Finding, Level
from .limits import check_limits
from .meeting import Meeting, probe_port, try_ports
from .network import check_names, check_port
from .node import Node, compare


@dataclass(frozen=True)
class Preflight:
    """What is to be run, as `anyrig run` is told.

    Attributes:
        rig: the devices of this machine.
        nproc_per_device: ranks on each.
        nnodes: how many machines.
        rdzv_endpoint: ``"host:port"`` at which they meet; None for one machine.
        local_address: by which the others reach this one; None for its name.
        limit_seconds: how long each wait may take.
    """

    rig: Rig
    nproc_per_device: int = 1
    nnodes: int = 1
    rdzv_endpoint: str | None = None
    local_address: str | None = None
    limit_seconds: float = 60.0

    def run(self) -> Iterator[Finding]:
        """Yield each finding as soon as it is made. Ends where what follows could only fail."""
        several = self.nnodes > 1
        yield from check_limits(len(self.rig) * self.nproc_per_device)
        names = list(check_names(several, self.local_address))
        yield from names
        yield from self._peers()
        if several:
            met = list(self._together())
            yield from met
            names += met
        if any(finding.level is Level.BAD for finding in names):
            return
        yield check_all_reduce(
            self.rig,
            self.nproc_per_device,
            str(self.nnodes),
            self.rdzv_endpoint,
            self.limit_seconds,
        )

    def _peers(self) -> Iterator[Finding]:
        for link in self.rig.links:
            if not link.peer_access:
                yield Finding(
                    "peer access",
                    Level.DOUBTFUL,
                    f"{link.first} and {link.second} copy through the host's memory",
                    "nothing, on cards without it; in a virtual machine, look at ACS and IOMMU",
                )

    def _together(self) -> Iterator[Finding]:
        host, _, port = (self.rdzv_endpoint or "").rpartition(":")
        if not host or not port.isdecimal():
            yield Finding(
                "meeting place",
                Level.BAD,
                f"{self.rdzv_endpoint!r} is no place where machines could meet",
                "name one on every machine alike: --rdzv-endpoint HOST:PORT",
            )
            return
        if not is_host_of(host):
            place = check_port(host, int(port), self.limit_seconds)
            yield place
            if place.level is Level.BAD:
                return
        with probe_port() as probe:
            here = Node.here(self.rig, self.local_address, probe)
            try:
                meeting = Meeting(host, int(port), self.nnodes, self.limit_seconds)
                nodes, late = meeting.exchange(here)
            except (LaunchError, RuntimeError) as error:
                first_line = str(error).partition("\n")[0]
                yield Finding(
                    "meeting place",
                    Level.BAD,
                    first_line,
                    f"look whether this command runs on {host}, and nothing else listens at {port}",
                )
                return
            for node in nodes:
                devices = ", ".join(node.devices)
                yield Finding("machines", Level.GOOD, f"{node.host} at {node.address}: {devices}")
            yield from compare(nodes, late)
            ports = list(try_ports(nodes, self.limit_seconds))
            meeting.part()
        yield from (replace(finding, host=here.host) for finding in ports)
