import pytest
import torch

import anyrig


def test_current_device_is_what_torch_says() -> None:
    device = anyrig.current_device()
    if torch.accelerator.is_available():
        assert device.index == torch.accelerator.current_device_index()
    else:
        assert device == torch.device("cpu")


def test_selecting_the_cpu_changes_nothing() -> None:
    before = anyrig.current_device()
    anyrig.devices.select_device("cpu")
    with anyrig.use_device("cpu") as device:
        assert device == torch.device("cpu")
    assert anyrig.current_device() == before


def test_facts_of_the_cpu() -> None:
    (cpu,) = anyrig.Rig.parse("cpu")
    assert anyrig.devices.device_name("cpu") == anyrig.devices.device_name(cpu) == cpu.name
    assert anyrig.devices.device_capability("cpu") is None
    assert anyrig.devices.device_name() == anyrig.devices.device_name(anyrig.current_device())
    assert anyrig.devices.device_count() == torch.accelerator.device_count()


def test_defaults_are_restored() -> None:
    with anyrig.devices.defaults(device="meta", dtype=torch.float64):
        assert torch.zeros(2).dtype is torch.float64
        assert torch.zeros(2).device.type == "meta"
        assert torch.nn.Linear(2, 2).weight.dtype is torch.float64
        with anyrig.devices.defaults(dtype=torch.bfloat16):
            assert torch.zeros(2).dtype is torch.bfloat16
        assert torch.zeros(2).dtype is torch.float64
    assert torch.zeros(2).dtype is torch.float32
    assert torch.zeros(2).device.type == "cpu"


def test_defaults_are_restored_after_an_exception() -> None:
    with pytest.raises(KeyError), anyrig.devices.defaults(device="meta", dtype=torch.float64):
        raise KeyError
    assert torch.get_default_dtype() is torch.float32
    assert torch.zeros(2).device.type == "cpu"


def test_a_bad_default_changes_nothing() -> None:
    with pytest.raises(TypeError), anyrig.devices.defaults(dtype=torch.int64):
        pass
    with (
        pytest.raises(ValueError, match="'gpu0' is not a device"),
        anyrig.devices.defaults("gpu0", torch.float64),
    ):
        pass
    assert torch.get_default_dtype() is torch.float32


def test_defaults_decorate_a_function() -> None:
    @anyrig.devices.defaults(dtype=torch.float64)
    def dtype() -> torch.dtype:
        return torch.zeros(1).dtype

    assert dtype() is dtype() is torch.float64
