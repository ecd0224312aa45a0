"""`anyrig doctor` finds what would keep a group of ranks from starting."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from two_machines import Machine, lack, two_machines

from anyrig.devices.device import Device
from anyrig.devices.link import Link
from anyrig.parallel.preflight.finding import Level
from anyrig.parallel.preflight.peers import check_peers
from anyrig.parallel.ranks.route import is_host_of

DOCTOR = [sys.executable, "-m", "anyrig", "doctor", "--device", "cpu", "--json", "--timeout", "20"]
PORT = 29731

# A machine with another torch and a clock of its own; everything else is this one's.
ANOTHER_TORCH = """
import sys, time, torch
now = time.time
time.time = lambda: now() + 7
torch.__version__ = "2.12.0"
sys.argv = ["anyrig", *sys.argv[1:]]
from anyrig.cli.app import main
main()
"""

# A machine that is busy with something else when all have told what they are.
A_SLOW_MACHINE = """
import sys, time
from anyrig.parallel.preflight.meeting import Meeting
share = Meeting.share
Meeting.share = lambda *told: (share(*told), time.sleep(3))[0]
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


@pytest.fixture(scope="module")
def _own_mounts() -> None:
    if subprocess.run(["unshare", "--mount", "--uts", "true"], capture_output=True).returncode:
        pytest.skip("needs namespaces of mounts and host names, which are root's")


def findings(output: str, check: str) -> list[dict[str, str]]:
    return [finding for finding in json.loads(output)["findings"] if finding["check"] == check]


def examine(
    machine: Machine, meeting_place: str, *flags: str, environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    place = ["--nnodes", "2", "--rdzv-endpoint", f"{meeting_place}:{PORT}"]
    command = [*DOCTOR, *place, "--local-addr", machine.address, *flags]
    return machine.popen(*command, environment=environment)


def bad_of(*processes: subprocess.Popen[str]) -> list[list[dict[str, str]]]:
    """What each of the processes finds bad; all of it says what to do."""
    found = []
    for process in processes:
        output, errors = process.communicate(timeout=90)
        assert process.returncode == 1, output + errors
        bad = [each for each in json.loads(output)["findings"] if each["level"] == "bad"]
        assert all(each["advice"] for each in bad)
        found.append(bad)
    return found


def test_two_machines_that_are_well(machines: tuple[Machine, Machine]) -> None:
    both = [examine(machine, machines[0].address) for machine in machines]
    for process in both:
        output, errors = process.communicate(timeout=90)
        assert process.returncode == 0, output + errors
        assert len(findings(output, "machines")) == 2
        assert findings(output, "ports")[0]["level"] == "good"
    assert "over 2 ranks by gloo" in output or "came through" in output


def test_a_machine_that_starts_its_ranks_late(machines: tuple[Machine, Machine]) -> None:
    place = ["--nnodes", "2", "--rdzv-endpoint", f"{machines[0].address}:{PORT}"]
    host = machines[0].popen(sys.executable, "-c", A_SLOW_MACHINE, *DOCTOR[3:], *place)
    for process in (examine(machines[1], machines[0].address), host):
        output, errors = process.communicate(timeout=90)
        assert process.returncode == 0, output + errors


def test_a_port_where_nothing_listens(machines: tuple[Machine, Machine]) -> None:
    ((place,),) = bad_of(examine(machines[1], machines[0].address, "--timeout", "2"))
    assert place["check"] == "meeting place"
    assert "nothing listened" in place["text"]
    assert "start the same command on that host" in place["advice"]


def test_a_port_that_is_closed(machines: tuple[Machine, Machine]) -> None:
    with machines[1].closed(PORT):
        flags = ["--timeout", "4", "--nnodes", "1:2"]
        host = examine(machines[0], machines[0].address, *flags)
        (place,), (nobody,) = bad_of(
            examine(machines[1], machines[0].address, "--timeout", "4"), host
        )
    assert place["check"] == "meeting place"
    assert "cannot be reached" in place["text"]
    assert "open the port in the firewall" in place["advice"]
    assert "1 of 2 machines came within 4 s" in nobody["text"]
    assert nobody["text"].endswith("start with these; to look at them alone: --nnodes 1")


def test_interfaces_that_lead_nowhere(machines: tuple[Machine, Machine]) -> None:
    variables = {"GLOO_SOCKET_IFNAME": "wlan77", "NCCL_SOCKET_IFNAME": "lo"}
    alone = examine(machines[0], machines[0].address, environment=variables)
    ((missing, loopback),) = bad_of(alone)
    assert missing["check"] == loopback["check"] == "interface"
    assert "GLOO_SOCKET_IFNAME=wlan77, and this machine has only lo, cable" in missing["text"]
    assert "NCCL_SOCKET_IFNAME=lo leads to no other machine" in loopback["text"]


@pytest.mark.usefixtures("_own_mounts")
def test_a_name_that_leads_to_the_loopback(
    machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 node0\n")  # as an installer writes it
    command = [*DOCTOR, "--nnodes", "2", "--rdzv-endpoint", f"node0:{PORT}"]
    setting = f'hostname node0 && mount --bind {hosts} /etc/hosts && exec "$@"'
    there = machines[0].popen("unshare", "--mount", "--uts", "bash", "-c", setting, "-", *command)
    ((address,),) = bad_of(there)
    assert address["check"] == "address"
    assert address["text"].startswith("node0 leads from here to 127.0.0.1, which is every machine")
    assert f"--local-addr ({machines[0].address})" in address["advice"]


@pytest.fixture(scope="module")
def troubled(machines: tuple[Machine, Machine]) -> list[str]:
    """What the other and itself say of a machine with another torch, clock and interface."""
    place = ["--nnodes", "2", "--rdzv-endpoint", f"{machines[0].address}:{PORT}"]
    other = [sys.executable, "-c", ANOTHER_TORCH, *DOCTOR[3:], *place]
    interface = {"GLOO_SOCKET_IFNAME": "other"}
    with machines[1].another_interface("other", "10.88.0.2"):
        here = examine(machines[0], machines[0].address)
        there = machines[1].popen(*other, environment=interface)
        outputs = [process.communicate(timeout=90)[0] for process in (here, there)]
    assert [here.returncode, there.returncode] == [1, 1]
    return outputs


def test_a_machine_is_the_host_of_its_loopback_addresses() -> None:
    assert is_host_of("127.0.1.1")  # to which an installer has its name lead
    assert is_host_of("localhost")
    assert not is_host_of("192.0.2.1")


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
    for output in troubled:  # one machine sees it, both know
        (port,) = [each for each in findings(output, "ports") if each["level"] == "bad"]
        assert "(10.77.0.2), for GLOO_SOCKET_IFNAME=other, cannot be reached" in port["text"]
        assert "name the interface that leads to the other machines" in port["advice"]
        assert "10.77.0.1" in port["host"]


@pytest.mark.usefixtures("_own_mounts")
def test_limits() -> None:
    setting = "ulimit -n 200 && ulimit -v 30000000 && mount -t tmpfs -o size=16m tmpfs /dev/shm"
    ended = subprocess.run(
        ["unshare", "--mount", "bash", "-c", f'{setting} && exec "$@"', "bash", *DOCTOR],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    for check, level in {
        "open files": "bad",
        "address space": "doubtful",
        "shared memory": "doubtful",
    }.items():
        (finding,) = findings(ended.stdout, check)
        assert finding["level"] == level
        assert finding["advice"]


def test_cards_without_peer_access() -> None:
    first, second = (Device("cuda", index, "Tesla T4") for index in range(2))
    (bad,) = check_peers([Link(first, second, False, None, None)])
    assert bad.level is Level.DOUBTFUL
    assert bad.text.startswith("cuda:0 (Tesla T4) and cuda:1 (Tesla T4) copy through the host")
    assert list(check_peers([Link(first, second, None, None, None)])) == []


def test_ranks_of_all_devices_and_the_flags_of_run(tmp_path: Path) -> None:
    flags = ["--max-restarts", "1", "--rdzv-id", "a", "--nnodes", "1", "--log-dir", str(tmp_path)]
    rehearse = [sys.executable, "-m", "anyrig", "rehearse", "--rig", "T4+L4", "-m", "anyrig"]
    ended = subprocess.run(
        [*rehearse, "doctor", "--json", *flags],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    (all_reduce,) = findings(ended.stdout, "all-reduce")
    assert all_reduce["text"].startswith("64.00 MiB over 2 ranks by nccl in ")
    (peers,) = findings(ended.stdout, "peer access")
    assert peers["text"] == "2 cards read each other's memory"
    assert findings(ended.stdout, "log folder")[0]["level"] == "good"
