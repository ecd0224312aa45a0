"""Each attempt has a store of its own, which listens only on the given address."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

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
        f"anyrig: port {port} of --master-port or --rdzv-endpoint is not free (Address already in "
        f"use), so MASTER_PORT is {met.bootstrap_store_info.master_port}; without these flags, any "
        "free port is taken\n"
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


HOSTS_THE_STORE = """
import sys, time
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("ready", flush=True)
time.sleep(60)
"""


def test_a_host_that_leaves_after_the_success_of_all_ranks_is_not_missed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", HOSTS_THE_STORE, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == "ready\n"
        met = NetworkRendezvous.at_endpoint(
            RunOptions(processes=1, rdzv_endpoint=f"127.0.0.1:{port}", local_address="127.0.0.1")
        )
        met.next_rendezvous()
        assert met.num_nodes_waiting() == 0
        host.kill()
    try:
        with pytest.raises(RendezvousConnectionError):
            _ask_for(30, met)
        met.end_with(lambda: False)
        with pytest.raises(RendezvousConnectionError):
            met.num_nodes_waiting()
        met.end_with(lambda: True)
        assert met.num_nodes_waiting() == 0
    finally:
        met.shutdown()


def _ask_for(seconds: float, met: NetworkRendezvous) -> None:
    """Ask how many nodes wait, again and again: PyTorch asks the store once a second."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        met.num_nodes_waiting()


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
