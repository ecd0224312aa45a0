"""Run all checks of this node and, with several nodes, of the network between the nodes."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace

from ...devices.rig import Rig
from ...errors import LaunchError
from ..options import RunOptions
from ..route import address_towards, is_host_of
from .bandwidth import check_all_reduce
from .finding import Finding, Level, bad, good
from .limits import check_limits, check_peers
from .meeting import Meeting, probe_port, try_ports
from .nccl_group import check_nccl_group
from .network import check_names, check_port, named_addresses
from .node import Node, compare
from .torch_names import check_torch_names, survey_names

_LIMIT_SECONDS = 60.0  # the limit of each wait without --timeout


def examine(rig: Rig, options: RunOptions) -> Iterator[Finding]:
    """Yield each finding as soon as its check is done; stop if later checks could only fail.

    Args:
        rig: the devices of this node.
        options: the ranks on these devices, and the rendezvous. With a range of nodes, wait for
            the maximum.
    """
    given = options.timeout_seconds
    limit_seconds = _LIMIT_SECONDS if given is None else given
    yield from check_torch_names(survey_names())
    yield from check_limits(options)
    host, address = None, None
    if options.rdzv_endpoint is not None:
        host = options.rdzv_endpoint.rpartition(":")[0]
        address = options.local_address or address_towards(host)
    fails = yield from _yield_all(check_names(address, host))
    yield from check_peers(rig.links)
    yield from check_nccl_group(rig, options)
    if fails:  # report an unreachable address before waiting for the other nodes
        return
    with ExitStack() as open_store:
        if address is not None:
            together = _check_nodes(rig, options, address, limit_seconds, open_store)
            if (yield from _yield_all(together)):
                return
        limited = replace(options, rdzv_timeout_seconds=limit_seconds, max_restarts=0)
        yield check_all_reduce(rig, limited, limit_seconds)


def _yield_all(findings: Iterable[Finding]) -> Generator[Finding, None, bool]:
    """Yield the findings, and return whether one of them is bad."""
    is_bad = False
    for finding in findings:
        yield finding
        is_bad |= finding.level is Level.BAD
    return is_bad


def _check_nodes(
    rig: Rig, options: RunOptions, address: str, limit_seconds: float, open_store: ExitStack
) -> Iterator[Finding]:
    """Yield findings on the rendezvous, on differences between the nodes, and on their ports.

    The rendezvous store stays open until `open_store` closes it.
    """
    host, _, port = str(options.rdzv_endpoint).rpartition(":")
    if not is_host_of(host):
        endpoint = check_port(host, int(port), limit_seconds)
        yield endpoint
        if endpoint.level is Level.BAD:
            return
    with probe_port() as probe:
        here = Node.here(rig, address, named_addresses(), probe)
        try:
            meeting = Meeting(host, int(port), *options.node_counts, limit_seconds)
            # Keep the store open: the ranks use the same port next, and other nodes may connect
            # before this node would have opened the port again.
            open_store.callback(meeting.close)
            nodes, delays = meeting.exchange(here)
        except (LaunchError, RuntimeError) as error:
            yield bad(
                "rendezvous",
                str(error).partition("\n")[0],
                f"check that this command runs on {host}, and that no other program listens at "
                f"port {port}",
            )
            return
        for node in nodes:
            yield good("nodes", f"{node}: {', '.join(node.devices)}")
        yield from compare(nodes, delays)
        ports = [replace(finding, host=str(here)) for finding in try_ports(nodes)]
        bad_on_any_node = meeting.share(ports)
    yield from (finding for finding in ports if finding.level is not Level.BAD)
    yield from bad_on_any_node
