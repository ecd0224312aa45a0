"""What `anyrig doctor` finds of interfaces, addresses and ports."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import asdict

import pytest
from one_finding import only

from anyrig.errors import LaunchError
from anyrig.processes.preflight.finding import Level
from anyrig.processes.preflight.network import (
    check_names,
    check_port,
    match_interfaces,
    named_addresses,
)
from anyrig.processes.preflight.node import Node, read_node
from anyrig.processes.route import is_host_of, outward_addresses


@pytest.mark.parametrize(("port", "is_one"), [(0, False), (1, True), (65535, True), (65536, False)])
def test_the_port_of_a_node_is_checked(port: int, is_one: bool) -> None:
    said = json.dumps(asdict(Node("node0", "10.0.0.1", port))).encode()
    if is_one:
        assert read_node(said).probe_port == port
    else:
        with pytest.raises(LaunchError, match="is malformed"):
            read_node(said)


THERE = ["lo", "eth0", "eth01", "ib0", "docker0", "docker_gw"]


@pytest.mark.parametrize(
    ("variable", "value", "names"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", ["eth0"]),
        ("GLOO_SOCKET_IFNAME", "eth", []),
        ("GLOO_SOCKET_IFNAME", "eth0,ib0", ["eth0", "ib0"]),
        ("GLOO_SOCKET_IFNAME", "^docker", []),
        ("NCCL_SOCKET_IFNAME", "eth", ["eth0", "eth01"]),
        ("NCCL_SOCKET_IFNAME", "eth0", ["eth0", "eth01"]),
        ("NCCL_SOCKET_IFNAME", "=eth0", ["eth0"]),
        ("NCCL_SOCKET_IFNAME", "=eth0,ib0", ["eth0", "ib0"]),
        ("NCCL_SOCKET_IFNAME", "^docker", ["eth0", "eth01", "ib0"]),
        ("NCCL_SOCKET_IFNAME", "^docker,eth", ["ib0"]),
        ("NCCL_SOCKET_IFNAME", "^=docker0", ["eth0", "eth01", "ib0", "docker_gw"]),
        ("NCCL_SOCKET_IFNAME", "lo", ["lo"]),
    ],
)
def test_interfaces_that_a_variable_names(variable: str, value: str, names: list[str]) -> None:
    assert match_interfaces(variable, value, THERE, ["lo"]) == names


def test_interfaces_that_lead_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "wlan77")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    address = next(iter(outward_addresses()), "192.0.2.1")
    found = check_names(address, "192.0.2.9")
    missing, loopback = [finding for finding in found if finding.check == "interface"]
    assert missing.level is loopback.level is Level.BAD
    assert "GLOO_SOCKET_IFNAME=wlan77, and this node has only " in missing.text
    assert "NCCL_SOCKET_IFNAME=lo is the loopback" in loopback.text
    assert missing.advice
    assert loopback.advice
    # On one node, the loopback is sufficient.
    alone = [finding.level for finding in check_names(None, None) if finding.check == "interface"]
    assert alone == [Level.BAD, Level.GOOD]
    assert named_addresses() == {}


def test_a_name_that_leads_to_the_loopback() -> None:
    address = only(check_names("localhost", "localhost"), "address")
    assert address.level is Level.BAD
    assert address.text.startswith("localhost resolves here to 127.0.0.1")
    assert "--local-addr" in str(address.advice)
    nowhere = only(check_names(None, "node0"), "address")
    assert nowhere.text == "there is no route from here to 'node0', or no such name"
    good = only(check_names("192.0.2.7", "192.0.2.1"), "address")
    assert (good.level, good.text) == (Level.GOOD, "the other nodes reach this node at 192.0.2.7")


def test_loopback_addresses_lead_to_this_node() -> None:
    assert is_host_of("127.0.1.1")  # the address of the host name in Debian's /etc/hosts
    assert is_host_of("localhost")
    assert not is_host_of("192.0.2.1")


def test_a_port_where_something_listens_and_then_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert check_port("127.0.0.1", port, 5.0).level is Level.GOOD
    started = time.monotonic()
    nothing = check_port("127.0.0.1", port, 0.5)
    assert time.monotonic() - started >= 0.5  # a listener may still appear
    assert nothing.level is Level.BAD
    assert f"no process listened at port {port}" in nothing.text
    assert "start the same command on that host" in str(nothing.advice)
    nowhere = check_port("no-such-host.invalid", port, 0.5)
    assert "does not resolve to an address" in nowhere.text
