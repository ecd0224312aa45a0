"""Check whether the nodes can reach each other: names, interfaces, ports."""

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


def check_names(address: str | None, endpoint_host: str | None) -> Iterator[Finding]:
    """Yield findings on this node's names, and on the interfaces that variables name.

    Args:
        address: the address of this node for its ranks, or None if unknown.
        endpoint_host: the host of the rendezvous endpoint; None on a single node.
    """
    if endpoint_host is not None:
        yield _check_address(address, endpoint_host)
    yield _check_own_name(address)
    for variable, value, names in named_interfaces():
        yield _check_interface(variable, value, names, endpoint_host is not None)


def _check_address(address: str | None, endpoint_host: str) -> Finding:
    """Check the address of this node that `anyrig run` gives to the other nodes."""
    outward = ", ".join(outward_addresses()) or "none was found"
    advice = f"give an address of this node with --local-addr ({outward})"
    found = resolve(address) if address is not None else []
    if not found:
        text = f"{address!r} does not resolve to an address"
        if address is None:
            text = f"there is no route from here to {endpoint_host!r}, or no such name"
        return bad("address", text, f"{advice}, or check: ip route")
    if all(is_loopback_address(each) for each in found):
        return bad(
            "address",
            f"{endpoint_host} resolves here to {', '.join(found)}, the loopback: the other nodes "
            "would try to reach this node on their own loopback",
            f"{advice} and in --rdzv-endpoint on every node, or correct /etc/hosts",
        )
    return good("address", f"the other nodes reach this node at {', '.join(found)}")


def _check_own_name(address: str | None) -> Finding:
    name = socket.gethostname()
    addresses = resolve(name)
    instead = "" if address is None else f"; anyrig run uses {address} instead"
    entry = f"/etc/hosts: {next(iter(outward_addresses()), 'ADDRESS')} {name}"
    if not addresses:
        text = f"{name!r}, the name of this node, does not resolve to an address{instead}"
        return doubtful("host name", text, f"add it to {entry}")
    text = f"{name} is {', '.join(addresses)}"
    if address is not None and all(is_loopback_address(each) for each in addresses):
        return doubtful(
            "host name",
            f"{text}, the loopback: with torchrun, which uses this name, the other nodes would try "
            f"to reach this node on their own loopback{instead}",
            f"give the name an address that the other nodes can reach, in {entry}",
        )
    return good("host name", text)


def named_interfaces() -> Iterator[tuple[str, str, list[str]]]:
    """Yield (variable, value, named interfaces) for each interface variable of gloo and NCCL."""
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
    """Return the interfaces in `present` that a variable names.

    ::

        GLOO_SOCKET_IFNAME=eth0,eth1    eth0 and eth1
        NCCL_SOCKET_IFNAME=eth,ib       all with the prefix eth or ib
        NCCL_SOCKET_IFNAME==eth0        eth0
        NCCL_SOCKET_IFNAME=^docker      all except the loopback and those with the prefix docker
        NCCL_SOCKET_IFNAME=^=docker0    all except the loopback and docker0
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


def _check_interface(variable: str, value: str, names: list[str], several_nodes: bool) -> Finding:
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
            f"{variable}={value} is the loopback, which does not lead to other nodes",
            f"set {variable} to one of {', '.join(sorted(present - set(names)))}, or unset it",
        )
    return good("interface", f"{variable}={value} is {', '.join(names)}")


def check_port(host: str, port: int, limit_seconds: float) -> Finding:
    """Wait at most `limit_seconds` until a process listens at `host` and `port`."""
    try:
        await_listener(host, port, limit_seconds, retried=ConnectionRefusedError)
    except ConnectionRefusedError:
        return bad(
            "rendezvous",
            f"{host} answers, but no process listened at port {port} for {limit_seconds:.0f} s",
            "start the same command on that host, too, or correct --rdzv-endpoint",
        )
    except socket.gaierror as error:
        return bad(
            "rendezvous",
            f"{host!r} does not resolve to an address ({error})",
            "use a host name that every node can resolve, or an address",
        )
    except OSError as error:
        return bad(
            "rendezvous",
            f"{host}:{port} cannot be reached: {error}",
            "open the port in the firewall between the nodes, and check whether they share a "
            f"network: ip route get {host}",
        )
    return good("rendezvous", f"{host}:{port} can be reached")
