"""Whether the nodes can reach each other: names, interfaces, ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator, Sequence

import psutil

from ..route import (
    INTERFACE_VARIABLES,
    await_listener,
    is_loopback,
    is_loopback_address,
    outward_addresses,
    resolve,
)
from .finding import Finding, bad, doubtful, good


def check_names(address: str | None, meeting_host: str | None) -> Iterator[Finding]:
    """Yield findings on this node's names, and on the interfaces that variables name.

    Args:
        address: of this node for its ranks, or None.
        meeting_host: where several nodes meet; None on a single node.
    """
    if meeting_host is not None:
        yield _address(address, meeting_host)
    yield _own_name(address)
    for variable, value, names in named_interfaces():
        yield _interface(variable, value, names, meeting_host is not None)


def _address(address: str | None, meeting_host: str) -> Finding:
    """Check the address of this node that `anyrig run` gives to the other nodes."""
    outward = ", ".join(outward_addresses()) or "none was found"
    advice = f"give an address of this node with --local-addr ({outward})"
    found = resolve(address) if address is not None else []
    if not found:
        text = f"{address!r} leads to no address"
        if address is None:
            text = f"there is no route from here to {meeting_host!r}, or no such name"
        return bad("address", text, f"{advice}, or check: ip route")
    if all(is_loopback_address(each) for each in found):
        return bad(
            "address",
            f"{meeting_host} leads from here to {', '.join(found)}, the loopback: the other nodes "
            "would look for this node on themselves",
            f"{advice} and in --rdzv-endpoint on every node, or correct /etc/hosts",
        )
    return good("address", f"the other nodes find this node at {', '.join(found)}")


def _own_name(address: str | None) -> Finding:
    name = socket.gethostname()
    addresses = resolve(name)
    instead = "" if address is None else f"; anyrig run uses {address} instead"
    entry = f"/etc/hosts: {next(iter(outward_addresses()), 'ADDRESS')} {name}"
    if not addresses:
        text = f"{name!r}, the name of this node, leads to no address{instead}"
        return doubtful("host name", text, f"add it to {entry}")
    text = f"{name} is {', '.join(addresses)}"
    if address is not None and all(is_loopback_address(each) for each in addresses):
        return doubtful(
            "host name",
            f"{text}, the loopback: torchrun, which uses this name, would have the other nodes "
            f"look for this node on themselves{instead}",
            f"give the name an address that the other nodes reach, in {entry}",
        )
    return good("host name", text)


def named_interfaces() -> Iterator[tuple[str, str, list[str]]]:
    """Yield (variable, value, interfaces that it names) for each variable of gloo and NCCL."""
    present = list(psutil.net_if_addrs())
    loopbacks = [name for name in present if is_loopback(name)]
    for variable in INTERFACE_VARIABLES:
        value = os.environ.get(variable)
        if value is not None:
            yield variable, value, match_interfaces(variable, value, present, loopbacks)


def named_addresses() -> dict[str, str]:
    """Return the IPv4 addresses of the named interfaces, each with the variable that names it."""
    return {
        entry.address: f"{variable}={value}"
        for variable, value, names in named_interfaces()
        for name in names
        for entry in psutil.net_if_addrs()[name]
        if entry.family == socket.AF_INET and not is_loopback(name)
    }


def match_interfaces(
    variable: str, value: str, present: Sequence[str], loopbacks: Collection[str]
) -> list[str]:
    """Return the interfaces among those present that a variable names.

    ::

        GLOO_SOCKET_IFNAME=eth0,eth1    these two
        NCCL_SOCKET_IFNAME=eth,ib       all whose names begin so
        NCCL_SOCKET_IFNAME==eth0        this one
        NCCL_SOCKET_IFNAME=^docker      all but the loopback and those whose names begin so
        NCCL_SOCKET_IFNAME=^=docker0    all but the loopback and this one
    """
    if variable.startswith("GLOO"):
        return [name for name in present if name in value.split(",")]
    excludes = value.startswith("^")
    value = value.removeprefix("^")
    is_whole = value.startswith("=")
    names = tuple(value.removeprefix("=").split(","))
    named = [name for name in present if (name in names if is_whole else name.startswith(names))]
    if excludes:
        return [name for name in present if name not in named and name not in loopbacks]
    return named


def _interface(variable: str, value: str, names: list[str], several_nodes: bool) -> Finding:
    present = psutil.net_if_addrs().keys()
    if not names:
        return bad(
            "interface",
            f"{variable}={value}, and this node has only {', '.join(present)}",
            f"set {variable} to the interface that leads to the other nodes, or unset it",
        )
    if several_nodes and all(is_loopback(name) for name in names):
        return bad(
            "interface",
            f"{variable}={value} leads to no other node: it is the loopback",
            f"set {variable} to one of {', '.join(sorted(present - set(names)))}, or unset it",
        )
    return good("interface", f"{variable}={value} is {', '.join(names)}")


def check_port(host: str, port: int, limit_seconds: float) -> Finding:
    """Wait until something listens there, for `limit_seconds` at most."""
    try:
        await_listener(host, port, limit_seconds, retried=ConnectionRefusedError)
    except ConnectionRefusedError:
        return bad(
            "meeting place",
            f"{host} answers, but nothing listened at port {port} for {limit_seconds:.0f} s",
            "start the same command on that host too, or correct --rdzv-endpoint",
        )
    except socket.gaierror as error:
        return bad(
            "meeting place",
            f"{host!r} leads to no address ({error})",
            "use a host name that every node can resolve, or the address",
        )
    except OSError as error:
        return bad(
            "meeting place",
            f"{host}:{port} cannot be reached: {error}",
            "open the port in the firewall between the nodes, and check whether they share a "
            f"network: ip route get {host}",
        )
    return good("meeting place", f"{host}:{port} can be reached")
