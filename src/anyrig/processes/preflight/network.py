"""Whether the machines can reach each other: names, interfaces, ports."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator, Sequence

import psutil

from ..route import (
    INTERFACE_VARIABLES,
    is_loopback,
    is_loopback_address,
    outward_addresses,
    resolve,
)
from .finding import Finding, bad, doubtful, good


def check_names(address: str | None, meeting_host: str | None) -> Iterator[Finding]:
    """Look at what this machine's names lead to, and at the interfaces that it is told to use.

    Its ranks are to be reached by `address`, if there are others; `meeting_host` is None if not.
    """
    if meeting_host is not None:
        yield _address(address, meeting_host)
    yield _own_name(address)
    for variable, value, names in named_interfaces():
        yield _interface(variable, value, names, meeting_host is not None)


def _address(address: str | None, meeting_host: str) -> Finding:
    """What `anyrig run` tells the other machines of this one."""
    outward = ", ".join(outward_addresses()) or "none was found"
    advice = f"name an address of this machine with --local-addr ({outward})"
    found = resolve(address) if address is not None else []
    if not found:
        text = f"{address!r} leads to no address"
        if address is None:
            text = f"there is no way from here to {meeting_host!r}, or no such name"
        return bad("address", text, f"{advice}, or look at: ip route")
    if all(is_loopback_address(each) for each in found):
        return bad(
            "address",
            f"{meeting_host} leads from here to {', '.join(found)}, which is every machine's name "
            "for itself: the others would look for this one on themselves",
            f"{advice} and in --rdzv-endpoint on every machine, or mend /etc/hosts",
        )
    return good("address", f"the others find this machine at {', '.join(found)}")


def _own_name(address: str | None) -> Finding:
    name = socket.gethostname()
    addresses = resolve(name)
    beside = "" if address is None else f"; anyrig run goes by {address} instead"
    entry = f"/etc/hosts: {next(iter(outward_addresses()), 'ADDRESS')} {name}"
    if not addresses:
        text = f"{name!r}, this machine's name, leads to no address{beside}"
        return doubtful("host name", text, f"add it to {entry}")
    text = f"{name} is {', '.join(addresses)}"
    if address is not None and all(is_loopback_address(each) for each in addresses):
        return doubtful(
            "host name",
            f"{text}, the loopback: what asks for this machine's name, as torchrun does, would "
            f"look for it elsewhere{beside}",
            f"have it lead to an address that others reach, in {entry}",
        )
    return good("host name", text)


def named_interfaces() -> Iterator[tuple[str, str, list[str]]]:
    """Yield each variable that tells gloo or NCCL its interface, its value, and whom it names."""
    there = list(psutil.net_if_addrs())
    loopbacks = [name for name in there if is_loopback(name)]
    for variable in INTERFACE_VARIABLES:
        value = os.environ.get(variable)
        if value is not None:
            yield variable, value, match_interfaces(variable, value, there, loopbacks)


def named_addresses() -> dict[str, str]:
    """Return the addresses of the interfaces that such variables name, each with who says so."""
    return {
        entry.address: f"{variable}={value}"
        for variable, value, names in named_interfaces()
        for name in names
        for entry in psutil.net_if_addrs()[name]
        if entry.family == socket.AF_INET and not is_loopback(name)
    }


def match_interfaces(
    variable: str, value: str, there: Sequence[str], loopbacks: Collection[str]
) -> list[str]:
    """Return which of the interfaces that are there a variable names.

    ::

        GLOO_SOCKET_IFNAME=eth0,eth1    these two
        NCCL_SOCKET_IFNAME=eth,ib       those whose names begin so
        NCCL_SOCKET_IFNAME==eth0        this one
        NCCL_SOCKET_IFNAME=^docker      all but the loopback and those whose names begin so
        NCCL_SOCKET_IFNAME=^=docker0    all but the loopback and this one
    """
    if variable.startswith("GLOO"):
        return [name for name in there if name in value.split(",")]
    leaves_out = value.startswith("^")
    value = value.removeprefix("^")
    is_whole = value.startswith("=")
    names = tuple(value.removeprefix("=").split(","))
    named = [name for name in there if (name in names if is_whole else name.startswith(names))]
    if leaves_out:
        return [name for name in there if name not in named and name not in loopbacks]
    return named


def _interface(variable: str, value: str, names: list[str], several_nodes: bool) -> Finding:
    there = list(psutil.net_if_addrs())
    if not names:
        return bad(
            "interface",
            f"{variable}={value}, and this machine has only {', '.join(there)}",
            f"set {variable} to the one that leads to the other machines, or unset it",
        )
    if several_nodes and all(is_loopback(name) for name in names):
        return bad(
            "interface",
            f"{variable}={value} leads to no other machine: it is the loopback",
            f"set {variable} to one of {', '.join(sorted(set(there) - set(names)))}, or unset it",
        )
    return good("interface", f"{variable}={value} is {', '.join(names)}")


def check_port(host: str, port: int, limit_seconds: float) -> Finding:
    """Look whether something listens there, which may come within `limit_seconds`."""
    ends = time.monotonic() + limit_seconds
    while True:
        left = ends - time.monotonic()
        try:
            socket.create_connection((host, port), timeout=max(0.1, left)).close()
            return good("meeting place", f"{host}:{port} can be reached")
        except ConnectionRefusedError:
            if left <= 0:
                text = (
                    f"{host} answers, but nothing listened at port {port} for {limit_seconds:.0f} s"
                )
                advice = (
                    "start the same command on that host too, or mend the port in --rdzv-endpoint"
                )
                return bad("meeting place", text, advice)
            time.sleep(0.2)
        except socket.gaierror as error:
            text = f"{host!r} leads to no address ({error})"
            advice = "name a host that every machine can resolve, or its address"
            return bad("meeting place", text, advice)
        except OSError as error:
            return bad(
                "meeting place",
                f"{host}:{port} cannot be reached: {error}",
                "open the port in the firewall between the machines, and look whether they share a "
                f"network: ip route get {host}",
            )
