"""Real processes choose devices on machines whose driver alone is a stand-in."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from anyrig.devices.choice import Choice, choose
from anyrig.devices.rig import Rig
from anyrig.errors import NoDeviceError
from forked_programs import run_forked

Environment = Callable[[str], dict[str, str]]

GIB = 2**30
A, B, C = (f"GPU-{letter * 4}0000-0000-0000-0000-000000000000" for letter in "abc")


def gpu(uuid: str, free_gib: int, utilization: int, process: int | None = None) -> str:
    lines = f"gpu uuid={uuid} name=NVIDIA_A100 total={80 * GIB} free={free_gib * GIB} "
    lines += f"used={(80 - free_gib) * GIB} utilization={utilization} major=8 minor=0 "
    lines += f"bus=00000000:{uuid[4:6].upper()}:00.0\n"
    if process is not None:
        lines += f"process pid={process} used={GIB} list=compute\n"
    return lines


EQUAL = gpu(A, 80, 0) + gpu(B, 80, 0)
UNEQUAL = gpu(A, 20, 0) + gpu(B, 70, 90, process=4194305) + gpu(C, 70, 10)

# torch.device("cuda:0") is a name; nothing here starts CUDA.
PRELUDE = f"""
import json, sys, time
from anyrig.devices.device import Device
from anyrig.devices.choice import choose
from anyrig.errors import NoDeviceError
gpus = [
    Device(kind="cuda", index=index, name="NVIDIA A100", uuid=uuid, total_bytes=80 * 2**30)
    for index, uuid in enumerate({[A, B, C]!r})
]
"""


def ask(environment: Mapping[str, str], call: str) -> tuple[list[str], dict[str, str]]:
    """The chosen devices and the reason of every device."""
    program = PRELUDE + (
        f"try:\n    choice = {call}\n"
        "    print(json.dumps([[d.text for d in choice.rig],"
        " {v.device.text: v.reason for v in choice.verdicts}]))\n"
        "except NoDeviceError as error:\n    print(json.dumps([[], {'error': str(error)}]))\n"
    )
    done = run_forked("-c", program, timeout=60, **environment)
    assert done.returncode == 0, done.stderr
    chosen, reasons = json.loads(done.stdout)
    return chosen, reasons


def test_the_most_free_memory_then_the_least_work(environment_with_gpus: Environment) -> None:
    chosen, reasons = ask(environment_with_gpus(UNEQUAL), "choose(2, devices=gpus)")
    assert chosen == ["cuda:2", "cuda:1"]
    assert reasons["cuda:2"] == "70.00 GiB free, 10% busy"
    assert reasons["cuda:0"] == "2 wanted, and others have more free memory or less work"


@pytest.mark.parametrize(
    ("threshold", "chosen", "reason_of_1"),
    [
        ("max_utilization=0.5", ["cuda:2", "cuda:0"], "90% busy, at most 50% wanted"),
        ("exclude_busy=True", ["cuda:2", "cuda:0"], "in use by process 4194305"),
        ("min_free_bytes=30 * 2**30", ["cuda:2", "cuda:1"], "70.00 GiB free, 90% busy"),
        ("min_free_bytes='30 GiB'", ["cuda:2", "cuda:1"], "70.00 GiB free, 90% busy"),
    ],
)
def test_thresholds(
    threshold: str, chosen: list[str], reason_of_1: str, environment_with_gpus: Environment
) -> None:
    environment = environment_with_gpus(UNEQUAL)
    answer, reasons = ask(environment, f"choose(2, devices=gpus, {threshold})")
    assert answer == chosen
    assert reasons["cuda:1"] == reason_of_1


def test_idle_devices_meet_a_threshold_of_no_work(environment_with_gpus: Environment) -> None:
    scenario = gpu(A, 80, 0) + gpu(B, 80, 1) + gpu(C, 20, 0)
    chosen, reasons = ask(
        environment_with_gpus(scenario), "choose(2, devices=gpus, max_utilization=0)"
    )
    assert chosen == ["cuda:0", "cuda:2"]
    assert reasons["cuda:1"] == "1% busy, at most 0% wanted"


def test_a_choice_that_fails_keeps_nothing(
    environment_with_gpus: Environment, tmp_path: Path
) -> None:
    # The first choice takes leases on two GPUs, and finds that the third does not qualify. The
    # second takes two, and cannot lock the file of the third.
    program = (
        "try:\n    choose(3, devices=gpus, min_free_bytes=30 * 2**30)\n"
        "except NoDeviceError:\n    pass\n"
        "import os\n"
        "from anyrig.devices.lease import acquire_lease\n"
        "from anyrig.devices.lease_file import lease_directory\n"
        "from anyrig.errors import LeaseDirectoryError\n"
        "trap = lease_directory() / (gpus[0].uuid + '.lock')\n"
        "trap.mkdir()\n"
        "try:\n    choose(3, devices=gpus)\n"
        "except LeaseDirectoryError:\n    trap.rmdir()\n"
        "print([acquire_lease(gpu.uuid)._count for gpu in gpus], flush=True)\n"
    )
    environment = environment_with_gpus(UNEQUAL) | {"ANYRIG_LEASE_DIRECTORY": str(tmp_path / "l")}
    done = run_forked("-c", PRELUDE + program, timeout=60, **environment)
    assert done.stdout == "[1, 1, 1]\n", done.stderr


def test_too_few_is_an_error_with_every_reason(environment_with_gpus: Environment) -> None:
    environment = environment_with_gpus(UNEQUAL)
    _, reasons = ask(environment, "choose(2, devices=gpus, min_free_bytes=75 * 2**30)")
    assert reasons["error"] == (
        "2 devices wanted, 0 suitable: "
        "cuda:2 (NVIDIA A100): not taken, 70.00 GiB free, 75.00 GiB wanted; "
        "cuda:1 (NVIDIA A100): not taken, 70.00 GiB free, 75.00 GiB wanted; "
        "cuda:0 (NVIDIA A100): not taken, 20.00 GiB free, 75.00 GiB wanted. "
        "Ask for fewer, lower the thresholds, or wait until a device is free"
    )


def test_a_device_that_does_not_tell_does_not_meet_a_threshold(
    environment_with_gpus: Environment,
) -> None:
    silent = gpu(A, 80, 0).replace(" utilization=0", "")
    _, reasons = ask(
        environment_with_gpus(silent), "choose(1, devices=gpus[:1], max_utilization=0.9)"
    )
    assert "it does not report its utilization" in reasons["error"]


def test_two_processes_at_the_same_moment_get_different_gpus(
    environment_with_gpus: Environment,
) -> None:
    # Each waits for the word, so that both choose at once; then they hold until they are killed.
    program = PRELUDE + (
        "print('ready', flush=True); sys.stdin.readline()\n"
        "choice = choose(1, devices=gpus[:2])\n"
        "print(choice.rig.lead.text, flush=True); time.sleep(60)\n"
    )
    environment = environment_with_gpus(EQUAL)
    command = [sys.executable, "-c", program]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env=environment, **pipes) for _ in range(2)]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        chosen = {process.stdout.readline().strip() for process in processes}
        assert chosen == {"cuda:0", "cuda:1"}
        _, reasons = ask(environment, "choose(1, devices=gpus[:2])")
        assert reasons["error"].count("leased by") == 2
        assert all(str(process.pid) in reasons["error"] for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    chosen, _ = ask(environment, "choose(2, devices=gpus[:2])")
    assert sorted(chosen) == ["cuda:0", "cuda:1"]


def test_the_cpu_is_shared_never_leased() -> None:
    (cpu,) = Rig.parse("cpu")
    with choose(devices=[cpu]) as first, choose(devices=[cpu]) as second:
        assert isinstance(first, Choice)
        assert first.rig.devices == second.rig.devices == (cpu,)
        assert first.leases == ()
        assert "cpu" in str(first)
        assert "taken" in str(first)


def test_two_cpus_are_not_to_be_had() -> None:
    with pytest.raises(NoDeviceError, match="2 devices wanted, 1 suitable: cpu"):
        choose(2, devices=Rig.parse("cpu"))


def test_arguments_out_of_range() -> None:
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        choose(0)
    with pytest.raises(ValueError, match=r"from 0 to 1, got 50; for 50 % write 0\.5"):
        choose(1, max_utilization=50)
    with pytest.raises(ValueError, match="min_free_bytes: cannot read '10 gibs' as a number of by"):
        choose(1, min_free_bytes="10 gibs")
    with pytest.raises(TypeError, match="count must be a number, got '2' of type str"):
        choose("2")
    with pytest.raises(
        TypeError, match=r"max_utilization must be a number, got '0\.5' of type str"
    ):
        choose(1, max_utilization="0.5")
    with pytest.raises(TypeError, match=r"min_free_bytes must be a number, got True of type bool"):
        choose(1, min_free_bytes=True)
