"""Each attempt has a store of its own, which listens only on the given address."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

import pytest
import torch.distributed as dist

from anyrig.processes.loopback import LoopbackRendezvous
from anyrig.processes.network_rendezvous import NetworkRendezvous
from anyrig.processes.options import RunOptions


def test_a_single_node_listens_on_the_loopback_only() -> None:
    met = LoopbackRendezvous().next_rendezvous()
    assert _listening_at(met.bootstrap_store_info.master_port) == ["0100007F"]


def test_the_first_attempt_meets_at_the_given_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rendezvous = LoopbackRendezvous(port)
    first, second = rendezvous.next_rendezvous(), rendezvous.next_rendezvous()
    assert first.bootstrap_store_info.master_port == port
    assert second.bootstrap_store_info.master_port != port  # this process holds the first store


def test_a_taken_port_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        met = LoopbackRendezvous(port).next_rendezvous()
    assert capsys.readouterr().err == (
        f"anyrig: port {port} is not free (Address already in use), so MASTER_PORT is "
        f"{met.bootstrap_store_info.master_port}\n"
    )


def test_each_attempt_has_an_empty_store() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    met = NetworkRendezvous.at_endpoint(
        RunOptions(processes=1, rdzv_endpoint=endpoint, local_address="127.0.0.1")
    )
    try:
        for _ in range(2):
            before = _open_sockets()
            place = met.next_rendezvous().bootstrap_store_info
            # PyTorch's handler opens no store of its own, which would listen on every interface.
            (port,) = _listening_ports(_open_sockets() - before)
            assert port == place.master_port
            assert _listening_at(place.master_port) == ["0100007F"]
            store = dist.TCPStore(place.master_addr, place.master_port)
            assert not store.check(["address"])
            store.set("address", "127.0.0.1:4711")
    finally:
        met.shutdown()


def _open_sockets() -> set[str]:
    """Return the inodes of this process's sockets."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            target = str(descriptor.readlink())
            found |= {target[8:-1]} if target.startswith("socket:[") else set()
    return found


def _listening_ports(sockets: set[str]) -> set[int]:
    """Return the TCP ports at which some of `sockets` listen."""
    return {
        int(line.split()[1].rpartition(":")[2], 16)
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[9] in sockets and line.split()[3] == "0A"
    }


def _listening_at(port: int) -> list[str]:
    """Return the addresses, in hexadecimal, at which something listens."""
    return [
        line.split()[1].partition(":")[0]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
    ]
