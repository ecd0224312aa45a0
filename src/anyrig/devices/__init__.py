"""Which devices exist, which are free, which to use."""

from .choose import Choice, Verdict, choose
from .device import Device, as_torch_device
from .link import Link
from .process import DeviceProcess
from .reading import Reading
from .rig import Rig
from .survey import peak_bytes, read, read_all, survey

__all__ = [
    "Choice",
    "Device",
    "DeviceProcess",
    "Link",
    "Reading",
    "Rig",
    "Verdict",
    "as_torch_device",
    "choose",
    "peak_bytes",
    "read",
    "read_all",
    "survey",
]
