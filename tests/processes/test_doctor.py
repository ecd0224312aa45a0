"""`anyrig doctor` from end to end: on two nodes, and over virtual GPUs.

Its parts have tests of their own, in `test_preflight.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from two_machines import Machine, lack, two_machines

from forked_programs import run_anyrig

DOCTOR = [sys.executable, "-m", "anyrig", "doctor", "--device", "cpu", "--json", "--timeout", "20"]
PORT = 29731

# A node with another version of torch and another clock.
ANOTHER_TORCH = """
import sys, time, torch
now = time.time
time.time = lambda: now() + 7
torch.__version__ = "2.12.0"
sys.argv = ["anyrig", *sys.argv[1:]]
from anyrig.cli.app import main
main()
"""

# A node that is busy after all nodes have described themselves.
A_SLOW_MACHINE = """
import sys, time
from anyrig.processes.preflight.meeting import Meeting
share = Meeting.share
Meeting.share = lambda *call: (share(*call), time.sleep(1.5))[0]
sys.argv = ["anyrig", *sys.argv[1:]]
from anyrig.cli.app import main
main()
"""


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Machine, Machine]]:
    reason = lack()
    if reason is not None:
        pytest.skip(reason)
    with two_machines() as both:
        yield both


def findings(output: str, check: str) -> list[dict[str, str]]:
    return [finding for finding in json.loads(output)["findings"] if finding["check"] == check]


def examine(
    machine: Machine, meeting_place: str, *flags: str, environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    place = ["--nnodes", "2", "--rdzv-endpoint", f"{meeting_place}:{PORT}"]
    command = [*DOCTOR, *place, "--local-addr", machine.address, *flags]
    return machine.popen(*command, environment=environment)


def bad_of(*processes: subprocess.Popen[str]) -> list[list[dict[str, str]]]:
    """Return the bad findings of each process; each finding has advice."""
    found = []
    for process in processes:
        output, errors = process.communicate(timeout=90)
        assert process.returncode == 1, output + errors
        bad = [each for each in json.loads(output)["findings"] if each["level"] == "bad"]
        assert all(each["advice"] for each in bad)
        found.append(bad)
    return found


def test_two_good_nodes_with_a_slow_one(machines: tuple[Machine, Machine]) -> None:
    place = ["--nnodes", "2", "--rdzv-endpoint", f"{machines[0].address}:{PORT}"]
    host = machines[0].popen(sys.executable, "-c", A_SLOW_MACHINE, *DOCTOR[3:], *place)
    for process in (examine(machines[1], machines[0].address), host):
        output, errors = process.communicate(timeout=90)
        assert process.returncode == 0, output + errors
        assert len(findings(output, "nodes")) == 2
        assert findings(output, "ports")[0]["level"] == "good"
    assert "over 2 ranks by gloo" in output


def test_a_port_that_is_closed(machines: tuple[Machine, Machine]) -> None:
    with machines[1].closed(PORT):
        flags = ["--timeout", "2", "--nnodes", "1:2"]
        host = examine(machines[0], machines[0].address, *flags)
        (place,), (nobody,) = bad_of(
            examine(machines[1], machines[0].address, "--timeout", "2"), host
        )
    assert place["check"] == "rendezvous"
    assert "cannot be reached" in place["text"]
    assert "open the port in the firewall" in place["advice"]
    assert "only 1 of 2 nodes joined within 2 s" in nobody["text"]
    assert nobody["text"].endswith("start with these nodes; to check only these: --nnodes 1")


@pytest.fixture(scope="module")
def troubled(machines: tuple[Machine, Machine]) -> list[str]:
    """Return what two nodes report, the second with another torch, clock and interface."""
    place = ["--nnodes", "2", "--rdzv-endpoint", f"{machines[0].address}:{PORT}"]
    other = [sys.executable, "-c", ANOTHER_TORCH, *DOCTOR[3:], *place]
    interface = {"GLOO_SOCKET_IFNAME": "other"}
    with machines[1].another_interface("other", "10.88.0.2"):
        here = examine(machines[0], machines[0].address)
        there = machines[1].popen(*other, environment=interface)
        outputs = [process.communicate(timeout=90)[0] for process in (here, there)]
    assert [here.returncode, there.returncode] == [1, 1]
    return outputs


def test_versions_that_differ(troubled: list[str]) -> None:
    for output in troubled:
        (torch,) = [each for each in findings(output, "versions") if each["level"] == "bad"]
        assert torch["text"].startswith("torch differs: ")
        assert "2.12.0 on " in torch["text"]
        assert torch["advice"] == "install one torch everywhere"


def test_clocks_that_differ(troubled: list[str]) -> None:
    for output in troubled:
        (clocks,) = findings(output, "clocks")
        assert "s apart" in clocks["text"]
        assert clocks["advice"]


def test_an_interface_that_leads_elsewhere(troubled: list[str]) -> None:
    for output in troubled:  # one node sees it, both report it
        (port,) = [each for each in findings(output, "ports") if each["level"] == "bad"]
        assert "(10.77.0.2), for GLOO_SOCKET_IFNAME=other, cannot be reached" in port["text"]
        assert "set it to the interface that leads to the other nodes" in port["advice"]
        assert "10.77.0.1" in port["host"]


def test_ranks_of_all_devices_and_the_flags_of_run(tmp_path: Path) -> None:
    flags = ["--max-restarts", "1", "--rdzv-id", "a", "--nnodes", "1", "--log-dir", str(tmp_path)]
    doctor = ("-m", "anyrig", "doctor", "--json", *flags)
    ended = run_anyrig("rehearse", "--rig", "T4+L4", *doctor, timeout=100)
    assert ended.returncode == 0, ended.stderr
    (all_reduce,) = findings(ended.stdout, "all-reduce")
    assert all_reduce["text"].startswith("64.00 MiB over 2 ranks by nccl in ")
    (peers,) = findings(ended.stdout, "peer access")
    assert peers["text"] == "2 GPUs can access each other's memory"
    assert findings(ended.stdout, "log folder")[0]["level"] == "good"
