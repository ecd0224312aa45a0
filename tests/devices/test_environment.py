"""The variables that show a new process its devices."""

import pytest

from anyrig.devices.device import Device
from anyrig.devices.environment import environment_for, environments_of_ranks

CPU = Device("cpu", None, "CPU")
A, B = (Device("cuda", index, "A100", uuid=f"GPU-{index}") for index in (1, 0))
NAMELESS = Device("cuda", 2, "A100")
XPU = Device("xpu", 0, "Arc", uuid="GPU-x")


@pytest.mark.parametrize(
    ("devices", "variables"),
    [
        ([CPU], {"CUDA_VISIBLE_DEVICES": "", "ANYRIG_DEVICE": "cpu"}),
        ([A, B], {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-0", "ANYRIG_DEVICE": "auto"}),
        ([A, NAMELESS], {"ANYRIG_DEVICE": "cuda:1,cuda:2"}),
        ([XPU], {"ANYRIG_DEVICE": "xpu:0"}),
    ],
)
def test_a_process_is_shown_its_devices(devices: list[Device], variables: dict[str, str]) -> None:
    assert environment_for(iter(devices)) == variables


def test_a_rank_is_named_its_own_device() -> None:
    assert environments_of_ranks([NAMELESS, A], 4) == [
        {"ANYRIG_DEVICE": text} for text in ("cuda:2", "cuda:2", "cuda:1", "cuda:1")
    ]
    shown = {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-0"}
    assert environments_of_ranks(iter([A, B])) == [
        {**shown, "ANYRIG_DEVICE": uuid} for uuid in ("GPU-1", "GPU-0")
    ]
    assert environments_of_ranks(iter([A, B]), 1) == [{**shown, "ANYRIG_DEVICE": "GPU-1"}]
    assert environments_of_ranks([CPU], 2) == [environment_for([CPU])] * 2
