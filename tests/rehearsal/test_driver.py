"""NVML and `nvidia-smi` in a rehearsal: the same GPUs, and the same bytes, as `torch.cuda` has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyrig.virtual.extras.driver.facts import facts_of
from anyrig.virtual.extras.driver.library import build_library
from anyrig.virtual.inheritance import VARIABLE, Inheritance
from anyrig.virtual.rig import VirtualRig
from forked_programs import run_anyrig, run_forked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="NVML is asked so on Linux only")

PROGRAMS = Path(__file__).parent / "programs"
OPEN = "import json, pynvml as n\nn.nvmlInit()\n"


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    build_library()


def inside(rig: str, folder: Path, **variables: str) -> dict[str, str]:
    """The environment of a process of a rehearsal of `rig`."""
    with Inheritance({"rig": rig}, str(folder)).handed_down():
        return {**os.environ, **variables}


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=180, check=False
    )


def ask(environment: dict[str, str], code: str) -> object:
    """Run `code`, which sets `answer`, with an open NVML."""
    done = run([sys.executable, "-c", f"{OPEN}{code}\nprint(json.dumps(answer))"], environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def smi(environment: dict[str, str], *arguments: str) -> str:
    done = run(["nvidia-smi", *arguments], environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_two_processes_hold_memory_and_everybody_counts_alike(tmp_path: Path) -> None:
    rig = "16GiB+80GiB"  # no contexts
    done = run_anyrig("rehearse", "--rig", rig, str(PROGRAMS / "holds_memory.py"))
    assert done.returncode == 0, done.stderr
    both, alone = map(json.loads, done.stdout.splitlines())
    own, other = 20 * 2**20, 48 * 2**20
    assert both == {
        "used": [0, own + other],
        "torch_used": [0, own + other],
        "holders": {"self": own, "other": other},
        "looker": [str(own + other), "False"],
        "smi": ["0", "68"],
        "smi_holders": ["other", "self"],
        "torch_index": 1,
    }
    assert alone == {"used": own, "torch_used": own}


def test_energy_is_what_the_power_adds_up_to(tmp_path: Path) -> None:
    milliwatts, before, after = ask(
        inside("T4", tmp_path),
        "import time\n"
        "h = n.nvmlDeviceGetHandleByIndex(0)\n"
        "power = n.nvmlDeviceGetPowerUsage(h)\n"
        "def joules(): return n.nvmlDeviceGetTotalEnergyConsumption(h) / 1000\n"
        "first = joules() / time.monotonic()\n"
        "time.sleep(0.5)\n"
        "answer = power, first, joules() / time.monotonic()\n",
    )
    assert milliwatts > 1000
    # Watts since the machine started.
    assert before == pytest.approx(milliwatts / 1000, rel=0.01)
    assert after == pytest.approx(milliwatts / 1000, rel=0.01)


@pytest.mark.parametrize("node", [None, 0, 1, 2])
def test_nvml_shows_the_gpus_of_the_own_node(node: int | None, tmp_path: Path) -> None:
    rig = VirtualRig.parse("2x(T4+A100-40GB)+(L4)")
    words = {} if node is None else {"GROUP_RANK": str(node)}
    # All of them: NVML does not know CUDA_VISIBLE_DEVICES.
    environment = inside(str(rig), tmp_path, CUDA_VISIBLE_DEVICES="1", **words)
    assert ask(
        environment,
        "handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]\n"
        "answer = [[n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetName(h),\n"
        "           n.nvmlDeviceGetMemoryInfo(h).total,\n"
        "           list(n.nvmlDeviceGetCudaComputeCapability(h))] for h in handles]",
    ) == [
        [gpu.uuid, gpu.name, gpu.memory_bytes, list(gpu.capability)]
        for gpu in rig.devices_of_node(node or 0)
    ]


def test_a_rig_of_one_node_is_the_machine_of_every_process(tmp_path: Path) -> None:
    environment = inside("2xT4", tmp_path, GROUP_RANK="5")
    assert ask(environment, "answer = n.nvmlDeviceGetCount()") == 2


def test_a_gpu_is_found_by_whatever_names_it(tmp_path: Path) -> None:
    assert ask(
        inside("3xT4", tmp_path),
        "h = n.nvmlDeviceGetHandleByIndex(2)\n"
        "found = [n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h)),\n"
        "         n.nvmlDeviceGetHandleBySerial(n.nvmlDeviceGetSerial(h)),\n"
        "         n.nvmlDeviceGetHandleByPciBusId(n.nvmlDeviceGetPciInfo(h).busId),\n"
        "         n.nvmlDeviceGetHandleByPciBusId(n.nvmlDeviceGetPciInfo(h).busIdLegacy)]\n"
        "answer = [n.nvmlDeviceGetIndex(f) for f in found]",
    ) == [2, 2, 2, 2]


def test_what_a_gpu_does_not_have_and_what_no_driver_has(tmp_path: Path) -> None:
    assert ask(
        inside("T4", tmp_path),
        "def error(question, *words):\n"
        "    try: return question(*words)\n"
        "    except n.NVMLError as e: return str(e)\n"
        "h = n.nvmlDeviceGetHandleByIndex(0)\n"
        "answer = [error(n.nvmlDeviceGetMigMode, h), error(n.nvmlDeviceGetFanSpeed, h),\n"
        "          error(n.nvmlDeviceGetHandleByIndex, 1), error(n.nvmlUnitGetCount),\n"
        "          error(n.nvmlDeviceGetHandleByUUID, 'GPU-1')]\n"
        "n.nvmlShutdown()\n"
        "answer.append(error(n.nvmlDeviceGetCount))",
    ) == [
        "Not Supported",
        "Not Supported",
        "Invalid Argument",
        "Function Not Found",
        "Not Found",
        "Uninitialized",
    ]


@pytest.mark.parametrize(
    ("rig", "expected"),
    [
        ("2xA100-80GB", ("nvlink", 300e9)),
        ("2xH100-SXM", ("nvlink", 450e9)),
        ("2xB200", ("nvlink", 900e9)),
        ("V100-32GB+T4+V100-32GB", ("pcie", 8e9 / 8 * 128 / 130 * 16)),
        ("V100-32GB+V100-32GB+T4", ("nvlink", 150e9)),
        ("2xL4", ("pcie", 16e9 / 8 * 128 / 130 * 16)),
    ],
)
def test_links_are_those_of_the_virtual_clock(
    rig: str, expected: tuple[str, float], tmp_path: Path
) -> None:
    first, second = VirtualRig.parse(rig).devices[:2]
    kind, rate = ask(
        inside(rig, tmp_path),
        "from anyrig.devices import nvml\n"
        f"link = nvml.link({first.uuid!r}, {second.uuid!r})\n"
        "answer = [link.kind, link.bytes_per_second]",
    )
    assert (kind, pytest.approx(rate)) == expected


def test_who_leaves_a_rehearsal_has_no_driver(tmp_path: Path) -> None:
    outside = inside("T4", tmp_path)
    del outside[VARIABLE]
    done = run([sys.executable, "-c", OPEN], outside)
    assert "NVMLError_LibraryNotFound" in done.stderr
    done = run(["nvidia-smi"], outside)
    assert (done.returncode, done.stderr) == (9, "")
    assert "couldn't communicate with the NVIDIA driver" in done.stdout


@pytest.mark.parametrize("children", [True, False])
def test_installed_in_python(children: bool) -> None:
    done = run_forked(
        "-c",
        "import os, shutil, pynvml, anyrig.virtual\n"
        f"anyrig.virtual.install('2xT4', children={children})\n"
        "import torch\n"
        "kept = torch.ones(2**20, device='cuda:1')\n"
        "pynvml.nvmlInit()\n"
        "used = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(1)).used\n"
        "print(used == torch.cuda.device_memory_used(1) > 0,"
        "      torch.cuda._raw_device_count_nvml(), shutil.which('nvidia-smi') is not None)\n",
    )
    assert (done.stdout, done.stderr) == (f"True 2 {children}\n", "")


def test_torch_takes_no_virtual_gpu_for_a_real_one(tmp_path: Path) -> None:
    done = run(
        [sys.executable, "-m", "anyrig", "rehearse", "--rig", "3xT4", str(PROGRAMS / "counts.py")],
        {**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "CUDA_VISIBLE_DEVICES": "2,0"},
    )
    assert (done.stdout, done.stderr) == ("True 2 [2, 0]\nTrue 2 [2, 0]\n", "")


def test_smi_lists_the_gpus(tmp_path: Path) -> None:
    first, second = VirtualRig.parse("A100-80GB+T4").devices
    environment = inside("A100-80GB+T4", tmp_path)
    assert smi(environment, "-L").splitlines() == [
        f"GPU 0: NVIDIA A100-SXM4-80GB (UUID: {first.uuid})",
        f"GPU 1: Tesla T4 (UUID: {second.uuid})",
    ]
    for name in ("1", second.uuid, "00000000:02:00.0", "02:00.0"):
        assert smi(environment, "-i", name, "-L").startswith("GPU 1: Tesla T4")


def test_smi_is_asked_as_gputil_asks_it(tmp_path: Path) -> None:
    fields = (
        "index,uuid,utilization.gpu,memory.total,memory.used,memory.free,driver_version,name,"
        "gpu_serial,display_active,display_mode,temperature.gpu"
    )
    text = smi(inside("2xT4", tmp_path), f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    assert text.endswith("\n")
    rows = [line.split(", ") for line in text.splitlines()]
    uuids = [gpu.uuid for gpu in VirtualRig.parse("2xT4").devices]
    assert [row[:8] for row in rows] == [
        [str(i), uuids[i], "0", "14909", "0", "14909", "580.95.05", "Tesla T4"] for i in range(2)
    ]
    assert [row[9:] for row in rows] == [["Disabled", "Disabled", "30"]] * 2


def test_smi_writes_units_and_what_it_does_not_know(tmp_path: Path) -> None:
    fields = "count,compute_cap,memory.total,power.draw,power.limit,fan.speed,utilization.gpu"
    text = smi(inside("A100-80GB", tmp_path), f"--query-gpu={fields}", "--format=csv")
    assert text.splitlines() == [
        "count, compute_cap, memory.total [MiB], power.draw [W], power.limit [W], fan.speed [%], "
        "utilization.gpu [%]",
        "1, 8.0, 81049 MiB, 50.00 W, 400.00 W, [N/A], 0 %",
    ]


def test_the_table_of_smi_is_as_wide_as_nvidias(tmp_path: Path) -> None:
    environment = inside("A100-80GB+T4", tmp_path)
    lines = smi(environment).splitlines()[1:]
    assert {len(line) for line in lines if line} == {91}
    assert any("Driver Version: 580.95.05 " in line for line in lines)
    assert "|  No running processes found" in lines[-2]
    asked = smi(environment, "-q", "-d", "MEMORY", "-i", "0")
    assert "        Total                             : 81049 MiB\n" in asked


def test_smi_shows_what_joins_the_gpus(tmp_path: Path) -> None:
    rows = smi(inside("2xA100-80GB+T4", tmp_path), "topo", "-m").splitlines()[1:4]
    assert [row.split("\t")[1:4] for row in rows] == [
        [" X ", "NV12", "PHB"],
        ["NV12", " X ", "PHB"],
        ["PHB", "PHB", " X "],
    ]


@pytest.mark.parametrize(
    ("arguments", "said", "status"),
    [
        (
            ["--query-gpu=name,colour", "--format=csv"],
            'Field "colour" is not a valid field to query.',
            2,
        ),
        (["--frob"], "ERROR: Option --frob is not recognized. Please run 'nvidia-smi -h'.", 2),
        (["-i", "7"], "No devices were found", 6),
    ],
)
def test_smi_refuses_as_nvidias_does(
    arguments: list[str], said: str, status: int, tmp_path: Path
) -> None:
    done = run(["nvidia-smi", *arguments], inside("T4", tmp_path))
    assert (done.returncode, done.stdout.strip()) == (status, said)


def test_a_large_rig_fits_into_a_variable() -> None:
    assert len(facts_of(VirtualRig.parse("1024x(64xH100-SXM)"), "/tmp/gpus")) < 500
