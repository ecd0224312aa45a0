"""Whether the machines can reach each other: names, interfaces, ports."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Iterator

import psutil

from ..ranks.route import INTERFACE_VARIABLES, is_loopback, outward_addresses, resolve
from .finding import Finding, Level


def check_names(several_nodes: bool, local_address: str | None) -> Iterator[Finding]:
    """Look at what this machine's name leads to, and at the interfaces that it is told to use."""
    yield _own_name(several_nodes, local_address)
    for variable in INTERFACE_VARIABLES:
        if variable in os.environ:
            yield _interface(variable, os.environ[variable], several_nodes)


def _own_name(several_nodes: bool, local_address: str | None) -> Finding:
    name = local_address or socket.gethostname()
    addresses = resolve(name)
    if not addresses:
        return Finding(
            "host name",
            Level.BAD if several_nodes else Level.DOUBTFUL,
            f"{name!r}, this machine's name, leads to no address",
            "add it to /etc/hosts, or name an address of this machine with --local-addr",
        )
    text = f"{name} is {', '.join(addresses)}"
    if several_nodes and all(ipaddress.ip_address(address).is_loopback for address in addresses):
        others = ", ".join(outward_addresses()) or "none was found"
        return Finding(
            "host name",
            Level.BAD,
            f"{text}: the other machines would look for this one on themselves",
            f"name an address of this machine with --local-addr ({others}), or mend /etc/hosts",
        )
    return Finding("host name", Level.GOOD, text)


def _interface(variable: str, value: str, several_nodes: bool) -> Finding:
    # "=eth0" is an exact name, "^docker" an exclusion, and "eth" the start of one, as in NCCL.
    wanted = value.removeprefix("=").split(",")
    there = psutil.net_if_addrs()
    if value.startswith("^"):
        return Finding("interface", Level.GOOD, f"{variable}={value} leaves some out")
    found = [name for name in there if any(name.startswith(start) for start in wanted)]
    if not found:
        return Finding(
            "interface",
            Level.BAD,
            f"{variable}={value}, and this machine has only {', '.join(there)}",
            f"set {variable} to the one that leads to the other machines, or unset it",
        )
    if several_nodes and all(is_loopback(name) for name in found):
        return Finding(
            "interface",
            Level.BAD,
            f"{variable}={value} leads to no other machine: it is the loopback",
            f"set {variable} to one of {', '.join(sorted(set(there) - set(found)))}, or unset it",
        )
    return Finding("interface", Level.GOOD, f"{variable}={value} is {', '.join(found)}")


def check_port(host: str, port: int, limit_seconds: float) -> Finding:
    """Look whether something listens there, at the latest in `limit_seconds`."""
    where = f"{host}:{port}"
    ends = time.monotonic() + limit_seconds
    try:
        _connect(host, port, ends)
        return Finding("meeting place", Level.GOOD, f"{where} can be reached")
    except socket.gaierror as error:
        return Finding(
            "meeting place",
            Level.BAD,
            f"{host!r} leads to no address ({error})",
            "name a host that every machine can resolve, or its address",
        )
    except ConnectionRefusedError:
        return Finding(
            "meeting place",
            Level.BAD,
            f"{host} answers, but nothing listened at port {port} for {limit_seconds:.0f} s",
            "start the same command on that host too, or mend the port in --rdzv-endpoint",
        )
    except (TimeoutError, OSError) as error:
        return Finding(
            "meeting place",
            Level.BAD,
            f"{where} cannot be reached: {error}",
            "open the port in the firewall between the machines, and look whether they share a "
            "network: ip route get " + host,
        )


def _connect(host: str, port: int, ends: float) -> None:
    """Connect once, trying again while nothing listens there yet."""
    while True:
        left = ends - time.monotonic()
        try:
            socket.create_connection((host, port), timeout=max(0.1, left)).close()
        except ConnectionRefusedError:
            if left <= 0:
                raise
            time.sleep(0.2)
        else:
            return
