"""What a caller may write for a device or a rig."""

from typing import Any

import pytest
import torch

from anyrig.devices.device import Device
from anyrig.devices.place import as_devices, as_rig, as_torch_device, as_torch_devices
from anyrig.devices.rig import Rig
from anyrig.errors import DeviceFailedError, DeviceTextError, NoDeviceError
from forked_programs import run_forked

CPU = torch.device("cpu")
RIG = Rig.parse("cpu")
BROKEN = Device("cuda", 0, "Some Gpu", error="it has fallen off the bus")


@pytest.mark.parametrize("place", ["cpu", CPU, RIG, RIG.lead, [CPU], ("cpu",), iter([RIG])])
def test_the_cpu_in_every_form(place: Any) -> None:
    forms = list(place) if not isinstance(place, (str, torch.device, Rig, Device)) else None
    again = place if forms is None else forms
    assert as_torch_devices(again) == (CPU,)
    assert as_devices(again) == (RIG.lead,)
    assert as_rig(again).devices == RIG.devices
    if forms is None:
        assert as_torch_device(place) == CPU


def test_a_rig_stays_itself_and_a_text_gives_its_reason() -> None:
    assert as_rig(RIG) is RIG
    assert as_rig("cpu").reason == "named by 'cpu'"
    assert as_rig([RIG.lead]).reason == "given"


def test_pytorchs_own_texts_are_pytorchs() -> None:
    assert as_torch_device("meta") == torch.device("meta")
    assert as_torch_device("cuda") == torch.device("cuda")
    assert as_torch_device("cuda:7") == torch.device("cuda:7")


@pytest.mark.parametrize("take", [as_torch_device, as_torch_devices, as_devices, as_rig])
@pytest.mark.parametrize(
    ("place", "message"),
    [
        (None, "None of type NoneType names no device; give a Rig, a Device, a torch.device"),
        (True, "True of type bool names no device"),
        (1.5, "1.5 of type float names no device"),
        ("gpu0", "cannot take 'gpu0' as devices: 'gpu0' is not a device. There are: "),
        ("", "cannot take '' as devices: it names no device"),
    ],
)
def test_what_is_no_device(take: Any, place: Any, message: str) -> None:
    with pytest.raises(DeviceTextError) as caught:
        take(place)
    assert str(caught.value).startswith(message)


def test_an_index_where_there_is_no_accelerator() -> None:
    program = """
from anyrig.devices.place import as_devices, as_rig, as_torch_device, as_torch_devices
print(as_rig("auto").reason.startswith("no working accelerator"))
for take in (as_torch_device, as_torch_devices, as_devices, as_rig):
    for place in (0, -1):
        try:
            print(take(place))
        except ValueError as error:
            print(str(error)[:60])
"""
    done = run_forked("-c", program, timeout=100, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    by_pytorch = [
        "device 0 is the index of an accelerator, and this machine ha",
        "device -1 is the index of an accelerator, and this machine h",
    ]
    by_text = [
        "cannot take '0' as devices: 0 is the index of an accelerator",
        "cannot take '-1' as devices: '-1' is not a device. There are",
    ]
    assert done.stdout.splitlines() == ["True", *by_pytorch, *by_pytorch, *by_text, *by_text]


def test_lists_are_of_devices_that_work_each_once() -> None:
    assert as_torch_devices(["cpu", CPU]) == (CPU, CPU)
    with pytest.raises(DeviceTextError, match="a rig can have each device only once"):
        as_rig(["cpu", CPU])
    with pytest.raises(NoDeviceError, match="at least one device"):
        as_rig([])


def test_a_broken_device_can_be_asked_about_and_not_used() -> None:
    assert as_devices([BROKEN, "cpu"]) == (BROKEN, RIG.lead)
    for take in (as_torch_device, as_torch_devices, as_rig):
        with pytest.raises(DeviceFailedError, match="it has fallen off the bus"):
            take(BROKEN)
