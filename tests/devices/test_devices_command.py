"""`anyrig devices` on this machine, and on machines whose driver alone is a stand-in."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest
import torch
from rich.console import Console

import anyrig
from anyrig.cli.device_facts import device_facts
from anyrig.cli.device_table import device_table
from anyrig.devices.process import DeviceProcess
from anyrig.devices.reading import Reading
from forked_programs import run_anyrig, run_forked

Environment = Callable[[str], dict[str, str]]

GIB = 2**30
A = "GPU-aaaa0000-0000-0000-0000-000000000000"
SERVER = f"""\
gpu uuid={A} bus=00000000:3B:00.0 name=NVIDIA_H200 total={140 * GIB} free={100 * GIB} \
used={39 * GIB} utilization=35 temperature=41 major=9 minor=0
process pid=4194305 used={30 * GIB} list=compute
gpu error=15
"""

needs_no_gpu = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="says what a machine without an accelerator shows"
)
BUILT_FOR_GPUS = torch.version.cuda or torch.version.hip  # asked before a test has virtual GPUs


def devices(*flags: str, environment: Mapping[str, str] = MappingProxyType({})) -> str:
    done = run_anyrig("devices", *flags, timeout=60, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_json_is_one_object_with_integers_and_nulls() -> None:
    answer = json.loads(devices("--json"))
    cpu = answer["devices"][-1]
    assert cpu["kind"] == "cpu"
    assert isinstance(cpu["total_bytes"], int)
    assert isinstance(cpu["free_bytes"], int)
    assert cpu["index"] is cpu["uuid"] is cpu["capability"] is None


def test_the_table_fits_80_columns(environment_with_gpus: Environment) -> None:
    table = devices(environment=environment_with_gpus(SERVER))
    first, *_ = table.splitlines()
    assert first.split() == ["device", "name", "free", "total", "busy", "°C", "used", "by"]
    assert max(len(line) for line in table.splitlines()) <= 80


def test_only_names_and_users_are_cut_where_columns_are_full(
    environment_with_gpus: Environment,
) -> None:
    full = SERVER.replace("H200", "H200_with_a_name_that_is_long").replace("=35", "=100")
    first, gpu, *_ = devices(environment=environment_with_gpus(full)).splitlines()
    assert first.split() == ["device", "name", "free", "total", "busy", "°C", "used", "by"]
    assert "100.00 GiB  140.00 GiB  100%  41  process" in gpu


def test_json_tells_why_a_sound_device_could_not_be_read() -> None:
    cpu = anyrig.Rig.parse("cpu").lead
    facts = device_facts(Reading(cpu, error="the GPU is lost"))
    assert (facts["device"], facts["error"]) == ("cpu", "the GPU is lost")


def test_the_largest_process_is_named_and_the_others_are_counted() -> None:
    processes = (
        DeviceProcess(7, "small", GIB),
        DeviceProcess(8, "large", 30 * GIB),
        DeviceProcess(9, None, None),
    )
    cpu = anyrig.Rig.parse("cpu").lead
    console = Console(width=80)
    with console.capture() as capture:
        console.print(device_table([Reading(cpu, processes=processes)]))
    assert capture.get().splitlines()[1].endswith("large 8 +2")


@needs_no_gpu
def test_gpus_that_pytorch_cannot_use_are_shown_with_the_reason(
    environment_with_gpus: Environment,
) -> None:
    answer = json.loads(devices("--json", environment=environment_with_gpus(SERVER)))
    gpu, lost, cpu = answer["devices"]
    assert gpu["uuid"] == A
    assert gpu["name"] == "NVIDIA H200"
    assert gpu["spec"] == "H200-SXM"
    assert gpu["capability"] == [9, 0]
    assert gpu["total_bytes"] == 140 * GIB
    assert gpu["free_bytes"] == 100 * GIB
    assert gpu["utilization"] == 0.35
    assert gpu["temperature_celsius"] == 41
    assert gpu["processes"] == [{"pid": 4194305, "name": None, "used_bytes": 30 * GIB}]
    assert gpu["own_bytes"] == 0
    assert gpu["others_bytes"] == 39 * GIB
    assert gpu["index"] is None
    assert gpu["error"]
    assert lost["error"]
    assert lost["error"] != gpu["error"]
    assert cpu["error"] is None


@needs_no_gpu
def test_hidden_gpus_name_the_variable(environment_with_gpus: Environment) -> None:
    environment = {**environment_with_gpus(SERVER), "CUDA_VISIBLE_DEVICES": ""}
    gpu = json.loads(devices("--json", environment=environment))["devices"][0]
    hidden = "hidden by CUDA_VISIBLE_DEVICES=''"
    expected = hidden if BUILT_FOR_GPUS else "is built without CUDA"
    assert expected in gpu["error"]


@needs_no_gpu
def test_the_rig_says_what_it_could_not_use(environment_with_gpus: Environment) -> None:
    code = "import anyrig; print(anyrig.Rig.detect().reason)"
    done = run_forked("-c", code, timeout=60, **environment_with_gpus(SERVER))
    assert done.stdout.startswith("no working accelerator, so the CPU (cuda (NVIDIA H200, GPU-aaaa")


@pytest.mark.parametrize("ending", ["the reader goes", "Ctrl-C"])
def test_watch_into_a_pipe_prints_one_table_after_the_other(ending: str) -> None:
    command = [sys.executable, "-m", "anyrig", "devices", "--watch", "--interval", "0.1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lines = []
        while sum(line.startswith("device ") for line in lines) < 2:
            lines.append(process.stdout.readline())
            assert lines[-1], process.stderr.read()
        if ending == "Ctrl-C":
            process.send_signal(signal.SIGINT)
        else:
            process.stdout.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""
    assert any(line.startswith("cpu ") for line in lines)


def test_watch_ends_with_ctrl_c() -> None:
    command = [sys.executable, "-m", "anyrig", "devices", "--watch", "--json", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        looks = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
        assert process.stderr.read() == b""
    assert all(look["devices"] for look in looks)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudoterminals")
def test_watch_on_a_terminal_draws_over_its_table_until_ctrl_c() -> None:
    command = [sys.executable, "-m", "anyrig", "devices", "--watch", "--interval", "0.1"]
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        command, stdout=theirs, stderr=subprocess.PIPE, env=environment
    ) as process:
        os.close(theirs)
        seen = b""
        while seen.count(b"\x1b[2K") < 4 or seen.count(b"used by") < 3:
            seen += os.read(ours, 2**16)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error
            while os.read(ours, 2**16):
                pass
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == b""
    os.close(ours)


def test_show_utilization_prints_where_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    anyrig.show_utilization(anyrig.Rig.parse("cpu"))
    assert capsys.readouterr().out.splitlines()[1].startswith("cpu ")
    anyrig.show_utilization(anyrig.Rig.parse("cpu"), file=sys.stderr)
    assert capsys.readouterr().err.splitlines()[1].startswith("cpu ")
