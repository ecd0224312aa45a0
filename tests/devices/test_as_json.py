"""Devices as text."""

import pytest

from anyrig.devices.as_json import read_device, write_device
from anyrig.devices.device import Device
from anyrig.errors import UnknownHardwareError
from anyrig.hardware import spec_of_key


def test_a_device_comes_back_with_what_other_processes_can_use() -> None:
    spec = spec_of_key("T4")
    device = Device("cuda", 1, "Tesla T4", uuid="GPU-1", total_bytes=15 * 2**30, spec=spec)
    assert read_device(write_device(device)) == Device(
        "cuda", None, "Tesla T4", total_bytes=15 * 2**30, spec=spec
    )
    cpu = Device("cpu", None, "CPU")
    assert read_device(write_device(cpu)) == cpu


def test_a_gpu_that_only_the_other_process_knows() -> None:
    with pytest.raises(UnknownHardwareError, match="X900"):
        read_device(b'["cuda", "X", null, "X900"]')
