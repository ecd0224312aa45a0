"""Each rank has the device that its launcher gave it, whatever else the machine has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from anyrig.devices.device import Device
from anyrig.devices.environment import environments_of_ranks
from anyrig.virtual.rig import VirtualRig
from forked_programs import run_forked

Environment = Callable[[str], dict[str, str]]

HERE = Path(__file__).parent
RIG = "2xT4+A100-80GB+L4"
T0, T1, A, L = (gpu.uuid for gpu in VirtualRig.parse(RIG).devices_of_node(0))

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available() and not torch.__version__.endswith("+cpu"),
    reason="virtual GPUs are refused where there are real ones",
)


def gpu(uuid: str, more: str = "") -> str:
    return f"gpu uuid={uuid} name=Gpu total={2**34} free={2**34} used=0 major=8 minor=0 {more}\n"


# NVML counts along the PCI bus, here from the last GPU on.
SOUND = "".join(map(gpu, (L, A, T1, T0)))
BROKEN = gpu(L) + gpu(A) + gpu(T1, "fails=15") + gpu(T0) + "gpu error=15\n"
MIG = f"{gpu('GPU-in-mig-mode', 'mig=1')}mig uuid=MIG-1 name=i total=1\n{SOUND}"

FORMS = {
    # The shell's CUDA_VISIBLE_DEVICES, --device, --nproc-per-device: each rank's device.
    (None, "auto", 1): [A, L, T0, T1],  # the strongest first
    (None, "auto", 2): [A, A, L, L, T0, T0, T1, T1],
    (None, "cpu", 2): ["cpu", "cpu"],
    (None, "cuda:1,3", 2): [T1, T1, L, L],
    (None, "3,0", 1): [L, T0],
    (None, A, 2): [A, A],
    ("", "auto", 2): ["cpu", "cpu"],
    ("", "cpu", 2): ["cpu", "cpu"],
    ("3", "auto", 2): [L, L],
    ("3,1", "cuda:1", 2): [T1, T1],
    ("3,1", "1,0", 2): [T1, T1, L, L],
    (f"{L},{T0}", "all", 1): [L, T0],
    ("2", "cpu", 2): ["cpu", "cpu"],
    # torchrun, which names no device: LOCAL_RANK counts the visible ones.
    (None, None, 4): [T0, T1, A, L],
    (None, None, 2): [T0, T1],
    ("3,1", None, 2): [L, T1],
    ("3,1", None, 3): [L, L, T1],  # the last device has fewer
    ("3,1", None, 4): [L, L, T1, T1],
    ("", None, 2): ["cpu", "cpu"],
}


def devices_of_ranks(
    environment: dict[str, str],
) -> dict[tuple[str | None, str | None, int], object]:
    forms = [dict(zip(("visible", "device", "each"), form, strict=True)) for form in FORMS]
    program = str(HERE / "devices_of_ranks.py")
    done = run_forked(program, RIG, json.dumps(forms), timeout=600, **environment)
    assert done.returncode == 0, done.stderr
    return dict(zip(FORMS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("scenario", [SOUND, MIG], ids=["reordered", "mig"])
def test_every_form(scenario: str, environment_with_gpus: Environment) -> None:
    assert devices_of_ranks(environment_with_gpus(scenario)) == FORMS


def test_every_form_beside_broken_gpus(environment_with_gpus: Environment) -> None:
    found = devices_of_ranks(environment_with_gpus(BROKEN))
    for form, devices in FORMS.items():
        device = form[1]
        if T1 not in devices:
            assert found[form] == devices, form
        elif device in ("auto", "all"):  # the launcher leaves it out
            assert found[form] == [each for each in devices if each != T1], form
        elif device is None:  # the other ranks keep theirs
            for each, own in zip(found[form], devices, strict=True):
                assert each == own or (own == T1 and "the GPU is lost" in each), form
        else:
            assert found[form].startswith("DeviceFailedError: ")
            assert "the GPU is lost" in found[form]


def test_instances_of_a_gpu_are_named_by_uuid() -> None:
    instances = [Device("cuda", index, "i", uuid=f"MIG-{index}") for index in range(2)]
    assert environments_of_ranks(instances, 4) == [
        {"CUDA_VISIBLE_DEVICES": "MIG-0,MIG-1", "ANYRIG_DEVICE": uuid}
        for uuid in ("MIG-0", "MIG-0", "MIG-1", "MIG-1")
    ]


def test_a_kind_without_a_variable_of_its_own_is_named_by_index() -> None:
    gpus = [Device("xpu", index, "Arc") for index in (2, 0)]
    assert environments_of_ranks(gpus) == [{"ANYRIG_DEVICE": "xpu:2"}, {"ANYRIG_DEVICE": "xpu:0"}]
