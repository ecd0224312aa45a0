"""The NVIDIA driver's view of the GPUs, through the real pynvml and a stand-in of the driver."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from anyrig.devices import nvml
from anyrig.virtual.rig import VirtualRig

GIB = 2**30
SERVER = f"""\
gpu uuid=GPU-aaaa0000-0000-0000-0000-000000000000 bus=00000000:3B:00.0 name=NVIDIA_H200 \
total={140 * GIB} free={100 * GIB} used={39 * GIB} utilization=35 temperature=41 major=9 minor=0 \
generation=5 width=16
process pid={os.getpid()} used={30 * GIB} list=compute
process pid={os.getpid()} used={30 * GIB} list=graphics
process pid=4194305 list=compute
nvlink to=00000000:86:00.0 version=6 mbps=26562
nvlink to=00000000:86:00.0 version=6 mbps=26562
nvlink to=nothing version=6
gpu error=15
gpu uuid=GPU-bbbb0000-0000-0000-0000-000000000000 bus=00000000:86:00.0 name=NVIDIA_H200 \
total={140 * GIB} free={140 * GIB} used=0 temperature=4294967295 major=9 minor=0 \
generation=4 width=8 mig=0
nvlink to=00000000:3B:00.0 version=6 mbps=26562
nvlink to=00000000:3B:00.0 version=6 mbps=26562
gpu uuid=GPU-cccc0000-0000-0000-0000-000000000000 bus=00000000:AF:00.0 name=NVIDIA_A100 \
total={80 * GIB} free={79 * GIB} used=0 temperature=30 major=8 minor=0 mig=1 processes=3
mig uuid=MIG-dddd0000-0000-0000-0000-000000000000 name=NVIDIA_A100_MIG_1g.10gb \
total={10 * GIB} free={9 * GIB} used={GIB}
"""
A, B, C = (f"GPU-{letter * 4}0000-0000-0000-0000-000000000000" for letter in "abc")
INSTANCE = "MIG-dddd0000-0000-0000-0000-000000000000"

Environment = Callable[[str], dict[str, str]]


def ask(environment: dict[str, str], code: str) -> object:
    """Run `code`, which sets `answer`, in a process with that driver and return the answer."""
    program = (
        "import dataclasses, json, os\n"
        "from anyrig.devices import nvml\n"
        f"{code}\n"
        "print(json.dumps(answer, default=dataclasses.asdict))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_gpu_and_instance_is_listed(environment_with_gpus: Environment) -> None:
    gpus = ask(environment_with_gpus(SERVER), "answer = nvml.gpus()")
    assert [gpu["uuid"] for gpu in gpus] == [A, None, B, C, INSTANCE]
    assert gpus[0] == {
        "uuid": A,
        "pci_bus_id": "0000:3b:00.0",
        "name": "NVIDIA H200",
        "total_bytes": 140 * GIB,
        "capability": [9, 0],
        "error": None,
        "parent_uuid": None,
        "mig_enabled": False,
    }
    assert gpus[3]["mig_enabled"]
    assert gpus[4]["parent_uuid"] == C
    assert gpus[4]["total_bytes"] == 10 * GIB
    assert gpus[4]["capability"] == [8, 0]
    assert gpus[4]["pci_bus_id"] == "0000:af:00.0"


def test_a_lost_gpu_has_an_error_that_says_what_to_do(environment_with_gpus: Environment) -> None:
    lost = ask(environment_with_gpus(SERVER), "answer = nvml.gpus()[1]")
    assert lost["error"] == (
        "the GPU is lost: it has fallen off the bus or stopped answering; see `dmesg` for an Xid "
        "message, then reset it (`sudo nvidia-smi --gpu-reset`) or restart the machine "
        "(NVML: GPU is lost)"
    )
    assert lost["uuid"] is lost["name"] is lost["total_bytes"] is None


def test_a_gpu_that_fails_keeps_what_it_told(environment_with_gpus: Environment) -> None:
    scenario = f"gpu uuid={A} bus=00000000:3B:00.0 name=NVIDIA_H200 total=1 fails=999\n"
    environment = environment_with_gpus(scenario)
    gpu = ask(environment, "answer = nvml.gpus()[0]")
    assert (gpu["uuid"], gpu["name"], gpu["total_bytes"]) == (A, "NVIDIA H200", None)
    assert gpu["error"] == "NVML: Unknown Error (code 999)"
    assert ask(environment, f"answer = nvml.moment({A!r})")["error"] == gpu["error"]


def test_a_moment_has_what_the_gpu_tells(environment_with_gpus: Environment) -> None:
    moment = ask(environment_with_gpus(SERVER), f"answer = nvml.moment({A!r})")
    processes = moment.pop("processes")
    assert moment == {
        "free_bytes": 100 * GIB,
        "used_bytes": 39 * GIB,
        "utilization": 0.35,
        "temperature_celsius": 41,
        "error": None,
    }
    # This process is in two of NVML's lists; no process has the other pid.
    assert [(p["pid"], p["used_bytes"]) for p in processes] == [
        (os.getpid(), 30 * GIB),
        (4194305, None),
    ]
    assert processes[0]["name"]
    assert processes[1]["name"] is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="the virtual rig needs no GPU beside it")
def test_the_allocator_tells_what_is_our_own_where_the_driver_has_another_pid(
    environment_with_gpus: Environment,
) -> None:
    # In a container the driver lists this process by its number outside.
    uuid = VirtualRig.parse("2xT4").devices[1].uuid
    scenario = f"gpu uuid={uuid} name=Tesla_T4 total={16 * GIB} free={6 * GIB} used={10 * GIB}\n"
    scenario += f"process pid=4194305 used={10 * GIB} list=compute\n"
    own, others, allocated = ask(
        environment_with_gpus(scenario),
        "assert nvml.gpus()  # before the virtual rig brings a driver of its own\n"
        "import anyrig.virtual; anyrig.virtual.install('2xT4')\n"
        "import torch; kept = torch.empty(2**30, dtype=torch.uint8, device='cuda:1')\n"
        "reading = anyrig.devices.read(anyrig.Rig.parse('cuda:1').lead)\n"
        "answer = reading.own_bytes, reading.others_bytes, torch.cuda.memory_reserved(1)",
    )
    assert own == allocated >= GIB
    assert others == 10 * GIB - own


def test_what_a_gpu_does_not_tell_is_none(environment_with_gpus: Environment) -> None:
    environment = environment_with_gpus(SERVER)
    whole = ask(environment, f"answer = nvml.moment({B!r})")
    assert whole["utilization"] is whole["temperature_celsius"] is None
    assert whole["processes"] == []
    assert whole["error"] is None
    assert ask(environment, f"answer = nvml.moment({C!r})")["processes"] is None
    instance = ask(environment, f"answer = nvml.moment({INSTANCE!r})")
    assert (instance["used_bytes"], instance["utilization"]) == (GIB, None)
    assert instance["temperature_celsius"] == 30  # of its GPU


def test_a_uuid_is_found_in_pytorchs_form(environment_with_gpus: Environment) -> None:
    bare = [uuid.partition("-")[2] for uuid in (A, INSTANCE)]
    code = f"answer = [nvml.moment(uuid).used_bytes for uuid in {bare}]"
    assert ask(environment_with_gpus(SERVER), code) == [39 * GIB, GIB]


def test_an_unknown_uuid_may_be_the_lost_gpu(environment_with_gpus: Environment) -> None:
    environment = environment_with_gpus(SERVER)
    assert "the GPU is lost" in ask(environment, "answer = nvml.moment('GPU-ffff')")["error"]
    environment = environment_with_gpus(SERVER.replace("gpu error=15\n", ""))
    assert ask(environment, "answer = nvml.moment('GPU-ffff')") is None


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        # Two NVLinks of version 4: 25 GB/s each, though the driver tells the line's 26.562.
        (A, B, {"kind": "nvlink", "bytes_per_second": 50e9}),
        # The driver does not tell the generation of the third GPU.
        (A, C, {"kind": "pcie", "bytes_per_second": None}),
        (A, A, None),
        (A, "GPU-ffff", None),
    ],
)
def test_links(environment_with_gpus: Environment, a: str, b: str, expected: object) -> None:
    assert ask(environment_with_gpus(SERVER), f"answer = nvml.link({a!r}, {b!r})") == expected


def test_a_pcie_link_is_as_fast_as_its_slower_end(environment_with_gpus: Environment) -> None:
    scenario = "\n".join(line for line in SERVER.splitlines() if not line.startswith("nvlink"))
    found = ask(environment_with_gpus(scenario), f"answer = nvml.link({A!r}, {B!r})")
    assert found["kind"] == "pcie"
    assert found["bytes_per_second"] == pytest.approx(8 * 16e9 / 8 * 128 / 130)


@pytest.mark.parametrize(
    ("of_link", "bytes_per_second"),
    [
        ("version=5 mbps=25000", 2 * 25e9),  # A100
        ("version=5 mbps=14062", 2 * 14.062e9),  # RTX 3090
        ("version=5", None),
        ("version=7", 2 * 50e9),
    ],
)
def test_gpus_at_a_switch_share_as_many_links_as_both_have(
    environment_with_gpus: Environment, of_link: str, bytes_per_second: float | None
) -> None:
    line = f"nvlink to=switch {of_link}\n"
    scenario = f"gpu uuid={A} bus=1:0:0.0\n{3 * line}gpu uuid={B} bus=2:0:0.0\n{2 * line}"
    expected = {"kind": "nvlink", "bytes_per_second": bytes_per_second}
    assert ask(environment_with_gpus(scenario), f"answer = nvml.link({A!r}, {B!r})") == expected


def test_every_opening_is_closed_and_a_session_opens_once(
    environment_with_gpus: Environment, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    environment = environment_with_gpus(f"driver log={log}\n{SERVER}")
    ask(environment, f"answer = [nvml.gpus(), nvml.moment({A!r}), nvml.link({A!r}, {B!r})]")
    assert [log.read_text().count(f"{word}\n") for word in ("open", "close")] == [3, 3]
    log.unlink()
    code = (
        "with nvml.session():\n"
        f"    for _ in range(100): answer = [nvml.moment({A!r}), nvml.moment({B!r})]"
    )
    ask(environment, code)
    # Four handles: one walk over the four whole GPUs.
    assert [log.read_text().count(word) for word in ("open", "close", "handle")] == [1, 1, 4]


def test_threads_share_a_session(environment_with_gpus: Environment, tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(8) as threads:\n"
        f"    moments = threads.map(lambda _: nvml.moment({A!r}), range(400))\n"
        "    answer = {moment.used_bytes for moment in moments}.__len__()"
    )
    assert ask(environment_with_gpus(f"driver log={log}\n{SERVER}"), code) == 1
    assert log.read_text().count("open\n") == log.read_text().count("close\n")


def test_a_child_forked_while_a_thread_opens_a_session_can_ask(
    environment_with_gpus: Environment,
) -> None:
    code = (
        "import multiprocessing\n"
        "from anyrig.devices import nvml_session\n"
        "with nvml.session():\n"
        "    nvml_session._sessions._lock.acquire()\n"
        "    with multiprocessing.get_context('fork').Pool(1) as pool:\n"
        f"        answer = pool.apply_async(nvml.moment, ({A!r},)).get(timeout=20)\n"
        "    nvml_session._sessions._lock.release()"
    )
    assert ask(environment_with_gpus(SERVER), code)["used_bytes"] == 39 * GIB


def test_a_driver_that_goes_away_is_an_error_of_the_moment(
    environment_with_gpus: Environment,
) -> None:
    code = (
        f"before = nvml.moment({A!r})\n"
        "open(os.environ['NVML_STAND_IN'], 'w').write('driver init=18')\n"
        f"after = nvml.moment({A!r})\n"
        "answer = [before.error, after.error, nvml.gpus(), nvml.unavailable_reason()]"
    )
    before, after, gpus, reason = ask(environment_with_gpus(SERVER), code)
    assert before is None
    assert after == reason
    assert after.startswith("the NVIDIA driver was updated while the old kernel module stayed")
    assert gpus == []


@pytest.mark.parametrize(
    ("code", "start"),
    [
        (4, "the driver refuses access; check the permissions of /dev/nvidia*"),
        (9, "the NVIDIA driver is installed but its kernel module is not loaded"),
        (999, "NVML: Unknown Error (code 999)"),
    ],
)
def test_a_driver_that_does_not_answer_is_explained(
    environment_with_gpus: Environment, code: int, start: str
) -> None:
    answer = ask(
        environment_with_gpus(f"driver init={code}"),
        "answer = [nvml.gpus(), nvml.unavailable_reason()]",
    )
    assert answer[0] == []
    assert answer[1].startswith(start)


def test_a_machine_without_a_driver_has_no_gpus(tmp_path: Path) -> None:
    # A library that cannot be loaded stands before any real one on the path.
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"not a library")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    gpus, moment, link, reason = ask(
        environment,
        f"answer = [nvml.gpus(), nvml.moment({A!r}), nvml.link({A!r}, {B!r}), "
        "nvml.unavailable_reason()]",
    )
    assert (gpus, moment, link) == ([], None, None)
    assert reason.startswith("there is no NVIDIA driver here (libnvidia-ml.so.1 cannot be loaded)")


def test_a_machine_with_a_driver_has_no_reason(environment_with_gpus: Environment) -> None:
    assert ask(environment_with_gpus(SERVER), "answer = nvml.unavailable_reason()") is None


def test_importing_asks_nothing_and_loads_little(environment_with_gpus: Environment) -> None:
    code = "import sys; answer = [name in sys.modules for name in ('pynvml', 'torch')]"
    assert ask(environment_with_gpus(SERVER), code) == [False, False]


def test_without_pynvml_there_are_no_gpus_and_the_package_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reason = nvml.unavailable_reason()
    assert reason.startswith("the package nvidia-ml-py cannot be imported (")
    assert reason.endswith("; run `pip install nvidia-ml-py`")
    assert (nvml.gpus(), nvml.moment("GPU-1"), nvml.link("GPU-1", "GPU-2")) == ((), None, None)


def test_a_question_that_pynvml_does_not_know_has_no_answer(
    environment_with_gpus: Environment,
) -> None:
    answer = ask(
        environment_with_gpus(SERVER),
        "from anyrig.devices.nvml_session import Questions, session\n"
        "with session() as opened:\n"
        "    questions = Questions(opened)\n"
        "    answer = questions.ask('nvmlAskedByNobody', 1), questions.error",
    )
    assert answer == [None, None]
