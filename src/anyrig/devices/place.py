"""The values that every public function accepts for a device or a rig."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from ..errors import DeviceTextError
from .device import Device
from .inventory import survey
from .rig import AUTO, Rig
from .text import WITHOUT_GPUS, select_devices

if TYPE_CHECKING:
    import torch

# A string is what `Rig.parse` reads: "cuda:1", "cuda:0,2", "auto". A number is the index of an
# accelerator. Where one device is wanted, a rig stands for its lead.
Place: TypeAlias = "Rig | Device | torch.device | str | int"
Places: TypeAlias = "Place | Iterable[Place]"


def as_torch_device(place: Place) -> torch.device:
    """Return the device that `place` names, as a `torch.device`.

    A string that `torch.device` accepts has PyTorch's meaning: ``"cuda"`` has no index, and
    ``"meta"`` is a device.

    Raises:
        DeviceTextError: the string, index or object names no device of this machine.
        DeviceFailedError: the device cannot be used.
    """
    if isinstance(place, Device):
        return place.torch_device
    if isinstance(place, Rig):
        return place.lead.torch_device
    import torch

    if isinstance(place, torch.device):
        return place
    if isinstance(place, str):
        try:
            return torch.device(place)
        except RuntimeError:
            return Rig.parse(place).lead.torch_device
    if isinstance(place, int) and not isinstance(place, bool):
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            raise DeviceTextError(
                f"device {place} is the index of an accelerator, and this machine has none; "
                f"use 'cpu', or see `anyrig devices`. {WITHOUT_GPUS}"
            )
        if place >= 0:
            return torch.device(accelerator.type, place)
    raise _refusal(place)


def as_torch_devices(places: Places) -> tuple[torch.device, ...]:
    """Return all devices that `places` names, in order, as `torch.device`.

    Raises:
        DeviceTextError, DeviceFailedError: as for `as_torch_device`.
    """
    if isinstance(places, Rig):
        return places.torch_devices
    if isinstance(places, str) and ("," in places or places in (AUTO, "all")):
        return Rig.parse(places).torch_devices
    if isinstance(places, str) or not isinstance(places, Iterable):
        return (as_torch_device(places),)
    return tuple(device for place in places for device in as_torch_devices(place))


def as_devices(places: Places) -> tuple[Device, ...]:
    """Return all devices that `places` names, in order, including unusable ones.

    Raises:
        DeviceTextError: a string, index or object names no device of this machine.
    """
    if isinstance(places, Device):
        return (places,)
    if isinstance(places, Rig) or places == AUTO:
        return as_rig(places).devices
    if isinstance(places, str) or not isinstance(places, Iterable):
        return select_devices(_text_of(places), survey())
    return tuple(device for place in places for device in as_devices(place))


def as_rig(places: Places) -> Rig:
    """Return the rig of all devices that `places` names, in order.

    Raises:
        DeviceTextError: a string, index or object names no device of this machine, a device is
            named twice, or the devices are of several kinds.
        DeviceFailedError: a device cannot be used.
        NoDeviceError: the list is empty.
    """
    if isinstance(places, Rig):
        return places
    if isinstance(places, str) or not isinstance(places, (Device, Iterable)):
        return Rig.parse(_text_of(places))
    return Rig(as_devices(places))


def _text_of(place: object) -> str:
    import torch

    if isinstance(place, (str, torch.device)) or (
        isinstance(place, int) and not isinstance(place, bool)
    ):
        return str(place)
    raise _refusal(place)


def _refusal(place: object) -> DeviceTextError:
    return DeviceTextError(
        f"{place!r} of type {type(place).__name__} names no device; give a Rig, a Device, a "
        "torch.device, a string such as 'cuda:1' or 'cpu', or the index of an accelerator from 0 up"
    )
