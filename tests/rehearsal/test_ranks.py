"""`anyrig rehearse` with the flags of `anyrig run`: ranks on virtual GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyrig.cli.group_flags import GroupFlags
from anyrig.cli.virtual_ranks import plan_ranks
from anyrig.devices.device import Device
from anyrig.devices.rig import order_by_strength
from anyrig.errors import DeviceFailedError, DeviceTextError
from anyrig.rehearsal.placement import Placement
from anyrig.virtual.build import build_extension
from anyrig.virtual.extras.driver.library import build_library
from anyrig.virtual.rig import VirtualRig
from forked_programs import run_anyrig

REHEARSE = [sys.executable, "-m", "anyrig", "rehearse", "--rig"]
PROGRAM = str(Path(__file__).parent / "programs" / "rank_of_a_node.py")


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    """Build ahead, so that no test meets the message of the first build."""
    build_extension()
    build_library()


def rehearse(
    rig: str, *arguments: str, temporary: Path, fresh: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Rehearse in a process that has imported torch, unless it is `fresh`."""
    place = temporary / "temporary"
    place.mkdir()
    if not fresh:
        return run_anyrig("rehearse", "--rig", rig, *arguments, TMPDIR=str(place), **variables)
    return subprocess.run(
        [*REHEARSE, rig, *arguments],
        env={**os.environ, "TMPDIR": str(place), **variables},
        capture_output=True,
        text=True,
        timeout=180,
    )


def test_ranks_of_unequal_nodes_fail_twice_as_a_group(tmp_path: Path) -> None:
    flags = ["--nnodes", "1:2", "--rdzv-endpoint", "node0:29400", "--max-restarts", "1"]
    logs = ["--log-dir", str(tmp_path / "logs")]
    done = rehearse("(2x1GiB)+(1GiB)", *flags, *logs, PROGRAM, "--its-own", temporary=tmp_path)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    for rank in range(3):  # the script's import of torch is the first
        assert f"[rank {rank}] False ['--its-own'] holds MiB 100" in lines, done.stderr
    assert {line for line in lines if "cuda:" in line} == {
        "[rank 0] 0 3 0 2 0 2 2 cuda:0 3.0",
        "[rank 1] 1 3 0 2 1 2 2 cuda:1 3.0",
        "[rank 2] 2 3 1 2 0 1 1 cuda:0 3.0",
    }
    message = done.stderr.rpartition("anyrig: error: ")[2]
    assert message.startswith("rank 2 failed")
    assert "the disk is on fire" in message
    kept = next((tmp_path / "logs").glob("**/attempt_1/2/stdout.log"))
    assert "holds MiB 100" in kept.read_text()
    assert list((tmp_path / "temporary").glob("anyrig-rehearsal*")) == []


def test_one_rank_is_the_process_itself(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(
        "import os, sys\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
        "print(os.environ['WORLD_SIZE'], torch.cuda.get_device_name())\n"
        "sys.exit(7)\n"
    )
    done = rehearse("T4+L4", "--device", "1", str(script), temporary=tmp_path, fresh=True)
    assert (done.returncode, done.stdout) == (7, "1 NVIDIA L4\n"), done.stderr


def test_more_nodes_than_the_rig_has(tmp_path: Path) -> None:
    done = rehearse("2xT4", "--nnodes", "2", PROGRAM, temporary=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "anyrig: error: --nnodes 2 needs at least 2 nodes, and the rig 2xT4 has 1; "
        "give the rig more nodes, as in 2x(8xH100-SXM)\n"
    )


@pytest.mark.parametrize(("nodes", "processes"), [(None, 6), ("1", 2), ("1:2", 4), ("2:9", 6)])
def test_ranks_are_on_as_many_nodes_as_are_asked_for(nodes: str | None, processes: int) -> None:
    placement, options = plan_ranks(
        VirtualRig.parse("3x(2xT4)"), GroupFlags(nodes=nodes, rdzv_endpoint="node0:29400")
    )
    assert placement.processes == options.processes == processes
    assert placement.environment_of(0)["GROUP_WORLD_SIZE"] == str(processes // 2)


@pytest.mark.parametrize(
    ("flags", "rig", "owners"),
    [
        ({"processes_per_node": "3"}, "2x(2xT4)", [0, 0, 1, 2, 2, 3]),
        ({"processes_per_node": "gpu"}, "(2xT4)+(L4)", [0, 1, 2]),
        ({"processes_per_node": "1", "rdzv_endpoint": "localhost:0"}, "2x(2xT4)", [0, 2]),
        ({"processes_per_node": "auto", "standalone": True}, "2x(2xT4)", [0, 1]),
        ({"processes_per_device": 2, "nodes": "1"}, "2x(2xT4)", [0, 0, 1, 1]),
    ],
)
def test_torchruns_flags_place_ranks_on_every_node(
    flags: dict[str, object], rig: str, owners: list[int]
) -> None:
    gpus = VirtualRig.parse(rig).devices
    placement, options = plan_ranks(VirtualRig.parse(rig), GroupFlags(**flags))
    assert options.processes == placement.processes == len(owners)
    own = [placement.environment_of(rank)["ANYRIG_DEVICE"] for rank in range(len(owners))]
    assert own == [gpus[owner].uuid for owner in owners]


@pytest.mark.parametrize(("flags", "port"), [({}, 0), ({"master_port": 7}, 7)])
@pytest.mark.parametrize("rig", ["2xT4", "2x(2xT4)"])
def test_no_port_is_chosen_that_no_flag_names(flags: dict[str, int], port: int, rig: str) -> None:
    options = plan_ranks(VirtualRig.parse(rig), GroupFlags(processes_per_node="2", **flags))[1]
    assert options.master_port == (port if rig == "2xT4" else 0)


def test_flags_of_local_ranks_hide_streams_on_every_node() -> None:
    flags = GroupFlags(local_ranks_filter="1", redirects="1:2", node_rank=1)
    placement, options = plan_ranks(VirtualRig.parse("(2xT4)+(3xT4)"), flags)
    assert placement.local_ranks == [0, 1, 0, 1, 2]
    hidden = {(rank, stream) for rank in (0, 2, 4) for stream in ("stdout", "stderr")}
    assert options.hidden_streams == hidden | {(1, "stderr"), (3, "stderr")}
    assert (options.nodes, options.rdzv_endpoint, options.node_rank) == ("1", None, None)


def test_a_placement_survives_its_text_and_puts_the_strongest_first() -> None:
    rig = VirtualRig.parse("(T4+A100-80GB)+(2xL4)")
    placement = Placement.on(rig, count_ranks=lambda devices: 2 * len(devices), nodes=2)
    assert Placement.parse(str(placement)) == placement
    assert placement.processes == 8
    assert placement.environment_of(5)["LOCAL_RANK"] == "1"
    t4, a100 = rig.devices_of_node(0)
    assert placement.environment_of(0)["CUDA_VISIBLE_DEVICES"] == f"{a100.uuid},{t4.uuid}"
    with pytest.raises(ValueError, match="no rank 8; the ranks are 0 to 7"):
        placement.environment_of(8)


@pytest.mark.parametrize("text", ["L4+A100-80GB", "1GiB+2GiB", "T4+8GiB"])
def test_a_placement_orders_as_a_rank_with_these_gpus_would(text: str) -> None:
    gpus = VirtualRig.parse(text).devices
    devices = tuple(
        Device(
            "cuda",
            index,
            gpu.name,
            uuid=gpu.uuid,
            capability=gpu.capability,
            total_bytes=gpu.memory_bytes,
            spec=gpu.spec,
        )
        for index, gpu in enumerate(gpus)
    )
    ordered, _ = order_by_strength(devices)
    placed = Placement.on(VirtualRig.parse(text), environment={}).environment_of(0)
    assert placed["CUDA_VISIBLE_DEVICES"] == ",".join(device.uuid for device in ordered)


def test_a_device_that_a_node_lacks() -> None:
    with pytest.raises(DeviceTextError, match=r"no cuda:1.*There are: cuda:0 \(Tesla T4\)"):
        Placement.on(VirtualRig.parse("(2xA100-80GB)+(T4)"), "0,1", nodes=2)


def test_the_cpu_of_each_node() -> None:
    placement = Placement.on(VirtualRig.parse("2x(T4)"), "cpu", lambda _: 3, nodes=2)
    assert placement.processes == 6
    assert placement.environment_of(3)["CUDA_VISIBLE_DEVICES"] == ""


def test_gpus_that_are_hidden_have_no_ranks() -> None:
    rig = VirtualRig.parse("(T4+A100-80GB)+(2xL4)")
    (t4, a100), (l4_0, l4_1) = rig.devices_of_node(0), rig.devices_of_node(1)

    def place(device: str, visible: str, each: int = 1) -> list[str]:
        environment = {"CUDA_VISIBLE_DEVICES": visible}
        placement = Placement.on(
            rig, device, lambda gpus: each * len(gpus), nodes=2, environment=environment
        )
        found = [placement.environment_of(rank) for rank in range(placement.processes)]
        return [variables["ANYRIG_DEVICE"] for variables in found]

    assert place("auto", "1", each=2) == [a100.uuid, a100.uuid, l4_1.uuid, l4_1.uuid]
    assert place("all", "1,9,0") == [a100.uuid, l4_1.uuid]
    assert place("all", "0,1") == [a100.uuid, t4.uuid, l4_0.uuid, l4_1.uuid]  # the strongest first
    assert place("cuda:0", "1,0") == [a100.uuid, l4_1.uuid]
    assert place("auto", l4_0.uuid) == ["cpu", l4_0.uuid]
    assert place("auto", "") == ["cpu", "cpu"]
    with pytest.raises(DeviceTextError, match=r"there is no cuda:1.*T4.*hidden by CUDA_VISIBLE_D"):
        place("cuda:1", "1")
    with pytest.raises(DeviceFailedError, match=r"T4.*hidden by CUDA_VISIBLE_DEVICES='1'"):
        Placement.on(
            VirtualRig.parse("2xT4"),
            VirtualRig.parse("2xT4").devices_of_node(0)[0].uuid,
            environment={"CUDA_VISIBLE_DEVICES": "1"},
        )


def test_a_rank_is_on_the_gpu_that_the_shell_shows(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(
        "import anyrig, torch\n"
        "print(anyrig.Rig.detect(), torch.cuda.device_count(), torch.cuda.get_device_name())\n"
    )
    arguments = ["T4+L4", "--nproc-per-device", "1", str(script)]
    done = rehearse(*arguments, temporary=tmp_path, CUDA_VISIBLE_DEVICES="0")
    assert done.stdout == "cuda:0 (Tesla T4) 1 Tesla T4\n", done.stderr
