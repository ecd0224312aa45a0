"""All checks of this machine, and with several machines of all of them together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

from ...devices.rig import Rig
from ...errors import LaunchError
from ..ranks.options import RunOptions
from ..ranks.route import address_towards, is_host_of
from .bandwidth import check_all_reduce
from .finding import Finding, Level
from .limits import check_limits
from .meeting import Meeting, probe_port, try_ports
from .network import check_names, check_port, named_addresses
from .node import Node, compare
from .peers import check_peers

_LIMIT_SECONDS = 60.0


@dataclass(frozen=True)
class Preflight:
    """What is to be run, as `anyrig run` is told.

    Attributes:
        rig: the devices of this machine.
        options: the ranks on them, and where machines meet. Of a range of machines the most are
            waited for.
    """

    rig: Rig
    options: RunOptions

    @property
    def limit_seconds(self) -> float:
        """How long each wait may take."""
        given = self.options.timeout_seconds
        return _LIMIT_SECONDS if given is None else given

    def run(self) -> Iterator[Finding]:
        """Yield each finding as soon as it is made. Ends where what follows could only fail."""
        yield from check_limits(self.options)
        meeting_host, address = None, None
        if self.options.rdzv_endpoint is not None:
            meeting_host = self.options.rdzv_endpoint.rpartition(":")[0]
            address = self.options.local_address or address_towards(meeting_host)
        names = list(check_names(address, meeting_host))
        yield from names
        yield from check_peers(self.rig.links)
        # An address at which the others look in vain is told before they are waited for.
        if any(finding.level is Level.BAD for finding in names):
            return
        with ExitStack() as meeting_place:
            if address is not None:
                together = list(self._together(address, meeting_place))
                yield from together
                if any(finding.level is Level.BAD for finding in together):
                    return
            yield self._all_reduce()

    def _all_reduce(self) -> Finding:
        limited = replace(self.options, rdzv_timeout_seconds=self.limit_seconds, max_restarts=0)
        return check_all_reduce(self.rig, limited, self.limit_seconds)

    def _together(self, address: str, meeting_place: ExitStack) -> Iterator[Finding]:
        host, _, port = (self.options.rdzv_endpoint or "").rpartition(":")
        if not host or not port.isdecimal():
            yield Finding(
                "meeting place",
                Level.BAD,
                f"{self.options.rdzv_endpoint!r} is no place where machines could meet",
                "name one on every machine alike: --rdzv-endpoint HOST:PORT",
            )
            return
        if not is_host_of(host):
            place = check_port(host, int(port), self.limit_seconds)
            yield place
            if place.level is Level.BAD:
                return
        with probe_port() as probe:
            here = Node.here(self.rig, address, named_addresses(), probe)
            try:
                meeting = Meeting(host, int(port), *self.options.node_counts, self.limit_seconds)
                # The ranks meet there next: were it opened anew, another machine could come before.
                meeting_place.callback(meeting.close)
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
                yield Finding("machines", Level.GOOD, f"{node}: {devices}")
            yield from compare(nodes, late)
            ports = [replace(finding, host=str(here)) for finding in try_ports(nodes)]
            bad = meeting.share(ports)
        yield from (finding for finding in ports if finding.level is not Level.BAD)
        yield from bad
