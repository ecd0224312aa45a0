"""`anyrig doctor` finds what would keep a group of ranks from starting."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from two_machines import Machine, lack, two_machines

from anyrig.parallel.preflight.finding import Level
from anyrig.parallel.preflight.network import check_names
from anyrig.parallel.preflight.node import Node, compare

DOCTOR = [sys.executable, "-m", "anyrig", "doctor", "--device", "cpu", "--json", "--timeout", "20"]
PORT = 29731


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Machine, Machine]]:
    reason = lack()
    if reason is not None:
        pytest.skip(reason)
    with two_machines() as both:
        yield both


def findings(output: str, check: str) -> list[dict[str, str]]:
    return [finding for finding in json.loads(output)["findings"] if finding["check"] == check]


def examine(machine: Machine, meeting_place: str, *flags: str) -> subprocess.Popen[str]:
    place = ["--nnodes", "2", "--rdzv-endpoint", f"{meeting_place}:{PORT}"]
    return machine.popen(*DOCTOR, *place, "--local-addr", machine.address, *flags)


def test_two_machines_that_are_well(machines: tuple[Machine, Machine]) -> None:
    both = [examine(machine, machines[0].address) for machine in machines]
    for process in both:
        output, errors = process.communicate(timeout=90)
        assert process.returncode == 0, output + errors
        assert len(findings(output, "machines")) == 2
        assert findings(output, "ports")[0]["level"] == "good"
    assert "over 2 ranks by gloo" in output or "came through" in output


def test_a_port_where_nothing_listens(machines: tuple[Machine, Machine]) -> None:
    alone = examine(machines[1], machines[0].address, "--timeout", "2")
    output, _ = alone.communicate(timeout=60)
    assert alone.returncode == 1
    (place,) = findings(output, "meeting place")
    assert "nothing listened" in place["text"]
    assert "start the same command on that host" in place["advice"]


def test_a_machine_that_does_not_come(machines: tuple[Machine, Machine]) -> None:
    alone = examine(machines[0], machines[0].address, "--timeout", "3")
    output, _ = alone.communicate(timeout=60)
    assert alone.returncode == 1
    assert "1 of 2 machines came within 3 s" in findings(output, "meeting place")[0]["text"]


def test_a_name_that_leads_to_the_loopback() -> None:
    (name,) = check_names(several_nodes=True, local_address="localhost")
    assert name.level is Level.BAD
    assert "--local-addr" in (name.advice or "")


def test_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "wlan77")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    _, missing, loopback = check_names(several_nodes=True, local_address="127.0.0.1")
    assert missing.level is Level.BAD
    assert "wlan77" in missing.text
    assert loopback.level is Level.BAD
    assert "loopback" in loopback.text


def test_versions_that_differ() -> None:
    here = Node("a", "10.0.0.1", 1, {"torch": "2.13.0", "python": "3.11.7"}, unix_seconds=100)
    there = Node("b", "10.0.0.2", 1, {"torch": "2.12.0", "python": "3.12.1"}, unix_seconds=107)
    found = {finding.text: finding.level for finding in compare([here, there], [0.0, 0.5])}
    torch, python, clocks = found
    assert torch.startswith("torch differs: 2.13.0 on a, 2.12.0 on b")
    assert found[torch] is Level.BAD
    assert found[python] is Level.DOUBTFUL
    assert "some 7 s apart" in clocks


@pytest.mark.parametrize(
    ("command", "check", "level"),
    [
        ("ulimit -n 200", "open files", "bad"),
        ("mount -t tmpfs -o size=16m tmpfs /dev/shm", "shared memory", "doubtful"),
    ],
)
def test_limits(command: str, check: str, level: str) -> None:
    unshared = ["unshare", "--mount"]
    if subprocess.run([*unshared, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs a mount namespace of its own, which is root's")
    ended = subprocess.run(
        [*unshared, "bash", "-c", f'{command} && exec "$@"', "bash", *DOCTOR],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (finding,) = findings(ended.stdout, check)
    assert finding["level"] == level, ended.stderr
    assert finding["advice"]
