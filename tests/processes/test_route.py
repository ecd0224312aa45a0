"""The route from this node to another, and time limits of connections to it."""

from __future__ import annotations

import socket
import threading
import time

import psutil
import pytest

from anyrig.processes import newcomers
from anyrig.processes.newcomers import join
from anyrig.processes.route import (
    address_towards,
    await_listener,
    interface_of,
    is_down,
    is_loopback,
    outward_addresses,
    resolve,
)
from anyrig.processes.torch_faults import bound_answers


def test_addresses_and_interfaces_of_this_node() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert address_towards("no-such-host.invalid") is None
    loopback = interface_of("127.0.0.1")
    assert loopback is not None
    assert is_loopback(loopback)
    assert not is_loopback("no-such-interface")
    assert interface_of("192.0.2.77") is None
    assert not is_down("127.0.0.1")
    assert not is_down("192.0.2.77")  # no interface has this address
    for address in outward_addresses():
        name = interface_of(address)
        assert name is not None
        assert not is_loopback(name)
    assert resolve("127.0.0.1") == ["127.0.0.1"]  # once, not once for each kind of socket
    assert resolve("no-such-host.invalid") == []


def test_a_link_local_address_has_the_interface_of_its_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = psutil.net_if_addrs()[interface_of("127.0.0.1") or "lo"][0]
    other = entry._replace(family=socket.AF_INET6, address="fe80::1%eth7")
    state = psutil.net_if_stats()[interface_of("127.0.0.1") or "lo"]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth7": [other]})
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {"eth7": state._replace(isup=False)})
    assert interface_of("fe80::1") == "eth7"
    assert is_down("fe80::1")


def test_only_connections_to_the_port_are_bounded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        with (
            socket.create_connection(("127.0.0.1", port)) as bounded,
            socket.create_server(("127.0.0.1", 0)) as two,
            socket.create_connection(two.getsockname()) as other,
        ):
            bound_answers(port, 7.5)
            timeout = socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
            assert bounded.getsockopt(*timeout) == 7500
            assert bounded.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert bounded.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 2
            assert bounded.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 2
            assert other.getsockopt(*timeout) == 0
            bounded.sendall(b"x")  # the closed socket was a duplicate


def test_waiting_for_a_listener_has_a_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        await_listener("127.0.0.1", port, 0)
    began = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        await_listener("127.0.0.1", port, 0.1)
    assert time.monotonic() - began >= 0.1
    opened: list[socket.socket] = []
    timer = threading.Timer(0.1, lambda: opened.append(socket.create_server(("127.0.0.1", port))))
    timer.start()
    await_listener("127.0.0.1", port, 30)
    timer.join()
    opened[0].close()


def test_joining_is_retried_and_its_failure_names_node_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()

        def answer() -> None:
            listening.accept()[0].close()  # dropped in a flood
            taken, _ = listening.accept()
            with taken:
                greetings.append(taken.recv(100))
                taken.sendall(b"wel")
                taken.sendall(b"come\nmore")

        greetings: list[bytes] = []
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with join(address, "token", 12) as joined:
            thread.join()
            assert joined.recv(10) == b"more"
        assert greetings == [b"token 00000012\n"]
    monkeypatch.setattr(newcomers, "_JOIN_SECONDS", 0.2)
    with pytest.raises(OSError, match="Connection refused") as raised:
        join(address, "token", 12)
    assert str(raised.value).startswith(
        f"the launcher of node 0 at 127.0.0.1:{address[1]} did not admit this node within 0 s: "
    )
