"""The address and the interface by which this node reaches other nodes."""

from __future__ import annotations

import ipaddress
import socket
import time
from contextlib import suppress

import psutil

# The variables that tell each library which interface to use. By default, gloo uses the interface
# with the host name's address, which is the loopback on many nodes.
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def address_towards(host: str) -> str | None:
    """Return this node's address on the route to `host`; None if there is no route.

    Connecting a datagram socket consults the routing table and sends nothing.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_of(address: str) -> str | None:
    """Return the name of the interface that has `address`, or None."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in addresses):
            return name
    return None


def is_host_of(host: str) -> bool:
    """Return whether `host` is this node. A node's name may resolve to a loopback address."""
    here = outward_addresses()
    return any(address in here or is_loopback_address(address) for address in resolve(host))


def is_loopback_address(address: str) -> bool:
    """Return whether an address is a loopback address, such as 127.0.1.1 or ::1."""
    return ipaddress.ip_address(address).is_loopback


def resolve(name: str) -> list[str]:
    """Return the addresses of a host name; empty if there are none."""
    with suppress(socket.gaierror):
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
    return []


def outward_addresses() -> list[str]:
    """Return the IPv4 addresses of this node's interfaces except the loopback."""
    return [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        if not is_loopback(name)
        for address in addresses
        if address.family == socket.AF_INET
    ]


def is_loopback(name: str) -> bool:
    """Return whether the interface `name` is the loopback."""
    return any(
        address.family == socket.AF_INET and is_loopback_address(address.address)
        for address in psutil.net_if_addrs().get(name, [])
    )


def is_down(address: str) -> bool:
    """Return whether the interface with `address` is down or has no carrier."""
    state = psutil.net_if_stats().get(interface_of(address) or "")
    return state is not None and not state.isup


def await_listener(host: str, port: int, seconds: float, retried: type[OSError] = OSError) -> None:
    """Wait until a process listens at `host` and `port`.

    The client of PyTorch's store would give up after a minute.

    Raises:
        OSError: connecting failed with an error other than `retried`, or failed for `seconds`.
    """
    ends = time.monotonic() + seconds
    while True:
        try:
            left = max(0.1, ends - time.monotonic())
            socket.create_connection((host, port), timeout=min(5.0, left)).close()
        except retried:
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)
        else:
            return
