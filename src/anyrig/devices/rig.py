"""The set of devices a program runs on."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import DeviceFailedError, DeviceTextError, NoDeviceError
from ..units import format_bytes
from .device import Device
from .environment import DEVICE_VARIABLE
from .inventory import survey, usable, visible
from .link import Link, find_links
from .probes import PROBES
from .rank import LocalRank
from .text import select_devices

if TYPE_CHECKING:
    import torch

AUTO = "auto"


@dataclass(frozen=True)
class Rig:
    """An ordered set of working devices of one kind; the first is the lead.

    Attributes:
        devices: the devices in order. `detect` puts the strongest first; a string or a list keeps
            its own order, as ``device_ids`` does in `torch.nn.DataParallel`.
        reason: why these devices, in this order.
    """

    devices: tuple[Device, ...]
    reason: str = "given"

    def __post_init__(self) -> None:
        if not self.devices:
            raise NoDeviceError("a rig needs at least one device; `anyrig devices` lists them")
        for device in self.devices:
            if not isinstance(device, Device):
                raise DeviceTextError(
                    f"a rig is made of devices, as anyrig.devices lists them; got {device!r}. "
                    "To name devices, write Rig.parse('cuda:0,1')"
                )
        texts = [device.text for device in self.devices]
        if len(set(texts)) < len(texts):
            raise DeviceTextError(f"a rig can have each device only once; got {', '.join(texts)}")
        if len({device.kind for device in self.devices}) > 1:
            raise DeviceTextError(
                f"a rig has devices of one kind only; got {', '.join(texts)}. "
                "Take the accelerators or the CPU, not both"
            )
        for device in self.devices:
            device.require_usable()

    @classmethod
    def detect(cls) -> Rig:
        """Return the devices that ``ANYRIG_DEVICE`` names, or else the machine's accelerators.

        Without ``ANYRIG_DEVICE``, return every working accelerator, the strongest first, or the CPU
        if there is none.

        In a rank, return only the rank's own device: `anyrig run` and `anyrig.launch` name it in
        ``ANYRIG_DEVICE``, and torchrun's ``LOCAL_RANK`` counts among the visible devices.

        Raises:
            DeviceTextError: ``ANYRIG_DEVICE`` names no device of this machine.
            DeviceFailedError: the rank's device, or one that ``ANYRIG_DEVICE`` names, cannot be
                used.
        """
        local, text = LocalRank.read(), os.environ.get(DEVICE_VARIABLE, AUTO)
        if text != AUTO:
            try:
                devices = cls.parse(text).devices
            except (DeviceTextError, DeviceFailedError) as error:
                raise type(error)(f"{DEVICE_VARIABLE}: {error}") from None
            reason = f"named by {DEVICE_VARIABLE}={text!r}"
        elif local is None:
            return cls._every_working()
        else:
            # A broken device keeps its index, or its rank would share a neighbour's device.
            devices, reason = visible(survey()), "counted among the visible devices"
        if local is None or len(devices) == 1:
            return cls(devices, reason)
        own = devices[local.device_index(len(devices))]
        return cls((own,), f"the device of LOCAL_RANK={local.rank} of {local.world_size}, {reason}")

    @classmethod
    def _every_working(cls) -> Rig:
        present = survey()
        devices, order = order_by_strength(usable(present))
        if devices[0].kind == "cpu":
            broken = "; ".join(f"{device}: {device.error}" for device in present if device.error)
            return cls(devices, "no working accelerator, so the CPU" + (broken and f" ({broken})"))
        return cls(devices, f"every working {devices[0].kind} device, {order}")

    @classmethod
    def parse(cls, text: str) -> Rig:
        """Return the devices that a string names.

        ``"auto"`` is `detect`, which uses ``ANYRIG_DEVICE``; ``"all"`` is every accelerator;
        ``"cpu"`` the CPU; ``"cuda"`` the current CUDA device, as in PyTorch; ``"cuda:1"``,
        ``"cuda:0,cuda:2"`` and ``"cuda:0,2"`` name devices by index; ``"0,2"`` and ``"2"`` name the
        machine's accelerators by index (``"2"`` is the third device, not two devices);
        ``"GPU-8932f937"`` names a device by the start of its UUID. The order of the string is kept.

        Raises:
            DeviceTextError: the text names no device of this machine; the message lists them.
            DeviceFailedError: the text names a device that cannot be used.
        """
        if not isinstance(text, str):
            raise DeviceTextError(
                f"Rig.parse reads a string, and {text!r} is of type {type(text).__name__}; write "
                "for example 'auto', 'all', 'cpu', 'cuda:1' or 'cuda:0,cuda:2'"
            )
        if text == AUTO:
            return cls.detect()
        # The CPU needs no survey of the accelerators, which imports torch: that takes a second.
        present = tuple(PROBES["cpu"].find()) if text == "cpu" else survey()
        devices = select_devices(text, present)
        if text == "all":
            devices, order = order_by_strength(devices)
            return cls(devices, f"every working {devices[0].kind} device, {order}")
        return cls(devices, f"named by {text!r}")

    @property
    def lead(self) -> Device:
        """The first device, which holds the caller's tensors and the gathered results."""
        return self.devices[0]

    @property
    def kind(self) -> str:
        """PyTorch's device type, the same for all devices."""
        return self.lead.kind

    @property
    def torch_devices(self) -> tuple[torch.device, ...]:
        """The devices as `torch.device`, in order."""
        return tuple(device.torch_device for device in self.devices)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The path between every two devices."""
        return find_links(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    def __iter__(self) -> Iterator[Device]:
        return iter(self.devices)

    def __getitem__(self, position: int) -> Device:
        return self.devices[position]

    def __str__(self) -> str:
        return ", ".join(str(device) for device in self.devices)

    def __repr__(self) -> str:
        """Return one line, with equal devices grouped."""
        runs = itertools.groupby(self.devices, key=lambda device: (device.name, device.total_bytes))
        parts = [_describe_equal(tuple(run)) for _, run in runs]
        return f"<Rig {'; '.join(parts)}: {self.reason}>"


def _describe_equal(devices: tuple[Device, ...]) -> str:
    first = devices[0]
    texts = [device.text for device in devices]
    named = ", ".join(texts if len(texts) <= 4 else [*texts[:2], "…", texts[-1]])
    count = "" if len(devices) == 1 else f"{len(devices)} x "
    return f"{named} ({count}{first.name}, {format_bytes(first.total_bytes)})"


def order_by_strength(devices: tuple[Device, ...]) -> tuple[tuple[Device, ...], str]:
    """Return `devices` with the strongest first, and the criterion.

    Devices are compared by published rates if these are known for every device, else by capability
    and memory. Equal devices keep their order.
    """
    if all(device.spec for device in devices):
        reason = "the fastest first by published FLOP/s, then memory"
        ordered = sorted(devices, key=_published_strength, reverse=True)
    else:
        reason = "the highest compute capability first, then memory"
        ordered = sorted(devices, key=_reported_strength, reverse=True)
    return tuple(ordered), reason


def _published_strength(device: Device) -> tuple[float, int]:
    return (device.spec.strength if device.spec else 0.0, device.total_bytes or 0)


def _reported_strength(device: Device) -> tuple[tuple[int, int], int]:
    return (device.capability or (0, 0), device.total_bytes or 0)
