"""The random numbers of a process: Python's, NumPy's, PyTorch's on the CPU and on its devices."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import CheckpointDamagedError
from ..processes.group.membership import current_group
from ..units import format_count

# What generators raise for a state that is not theirs.
_REFUSALS = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError)


def read_random_state() -> dict[str, Any]:
    """Return the state of every generator that this process uses, as plain values and tensors.

    A rank uses its own device; a process without ranks uses all devices.
    """
    numpy = sys.modules.get("numpy")
    state: dict[str, Any] = {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "devices": [_device_module(device).get_rng_state(device) for device in _devices()],
    }
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = [str(name), [int(key) for key in keys], *rest]
    return state


def check_random_state(state: Mapping[str, Any]) -> None:
    """Raise if a generator would refuse its state; this process's generators do not change.

    Raises:
        CheckpointDamagedError: a state is missing or was altered.
    """
    try:
        random.Random().setstate(_as_tuples(state["python"]))  # noqa: S311 (draws nothing)
        torch.Generator().set_state(state["torch"])
        if "numpy" in state and "numpy" in sys.modules:
            sys.modules["numpy"].random.RandomState().set_state(tuple(state["numpy"]))
        for each in state["devices"]:
            if each.dtype != torch.uint8 or each.dim() != 1:
                raise ValueError("the state of a device is not a list of bytes")
    except _REFUSALS as error:
        raise _altered(error) from error


def write_random_state(state: Mapping[str, Any]) -> str:
    """Set the generators to a state; return a text that names those left unchanged, or ``""``.

    Raises:
        CheckpointDamagedError: a generator refuses its state.
    """
    try:
        return _write(state)
    except _REFUSALS as error:
        raise _altered(error) from error


def _altered(error: Exception) -> CheckpointDamagedError:
    return CheckpointDamagedError(
        f"the saved random numbers were altered: {error}. Leave them out with "
        "load(…, random_numbers=False)"
    )


def _write(state: Mapping[str, Any]) -> str:
    left = []
    random.setstate(_as_tuples(state["python"]))
    torch.set_rng_state(state["torch"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(state["numpy"]))
    devices = _devices()
    for device, saved in zip(devices, state["devices"], strict=False):
        module = _device_module(device)
        if module.get_rng_state(device).shape == saved.shape:
            module.set_rng_state(saved, device)
        else:
            left.append(str(device))
    left += map(str, devices[len(state["devices"]) :])
    texts = []
    if left:
        names = ", ".join(left)
        texts.append(f"random numbers of {names}: the saving process did not have this device")
    more = len(state["devices"]) - len(devices)
    if more > 0:
        texts.append(
            f"random numbers of {format_count(more, 'device')} that this process does not have; "
            "dropout on other devices draws other masks"
        )
    return "; ".join(texts)


def _devices() -> list[torch.device]:
    if not torch.accelerator.is_available():
        return []
    group = current_group()
    if group is not None:
        return [] if group.device.type == "cpu" else [group.device]
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    if kind.type == "mps":  # its module takes no device
        return [torch.device("mps")]
    return [torch.device(kind.type, index) for index in range(torch.accelerator.device_count())]


def _device_module(device: torch.device) -> Any:
    module = torch.get_device_module(device)
    return _WithoutIndex(module) if device.type == "mps" else module


class _WithoutIndex:
    """A device module whose functions take no device."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def get_rng_state(self, device: torch.device) -> Any:
        return self._module.get_rng_state()

    def set_rng_state(self, state: Any, device: torch.device) -> None:
        self._module.set_rng_state(state)


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, (list, tuple)) else value
