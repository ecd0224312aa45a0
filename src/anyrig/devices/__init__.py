"""Which devices exist, which are free, which to use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..late_names import load_late

if TYPE_CHECKING:
    from .activity import peak_bytes as peak_bytes
    from .activity import read as read
    from .activity import read_all as read_all
    from .arguments import add_device_arguments as add_device_arguments
    from .arguments import rig_from_arguments as rig_from_arguments
    from .arguments import rig_from_options as rig_from_options
    from .choice import Choice as Choice
    from .choice import Verdict as Verdict
    from .choice import choose as choose
    from .cuda_start import watch_cuda_start as watch_cuda_start
    from .current import current_device as current_device
    from .current import device_capability as device_capability
    from .current import device_count as device_count
    from .current import device_name as device_name
    from .current import select_device as select_device
    from .current import use_device as use_device
    from .device import Device as Device
    from .hiding import hide_all as hide_all
    from .hiding import write_visibility as write_visibility
    from .inventory import survey as survey
    from .lease import Lease as Lease
    from .lease import acquire_lease as acquire_lease
    from .link import Link as Link
    from .options import DeviceOption as DeviceOption
    from .options import DisableCudaOption as DisableCudaOption
    from .place import as_torch_device as as_torch_device
    from .process import DeviceProcess as DeviceProcess
    from .reading import Reading as Reading
    from .rig import Rig as Rig
    from .tensor_defaults import defaults as defaults
    from .visibility import read_visibility as read_visibility

_MODULE_OF_NAME = {
    "Choice": ".choice",
    "Device": ".device",
    "DeviceOption": ".options",
    "DeviceProcess": ".process",
    "DisableCudaOption": ".options",
    "Lease": ".lease",
    "Link": ".link",
    "Reading": ".reading",
    "Rig": ".rig",
    "Verdict": ".choice",
    "acquire_lease": ".lease",
    "add_device_arguments": ".arguments",
    "as_torch_device": ".place",
    "choose": ".choice",
    "current_device": ".current",
    "defaults": ".tensor_defaults",
    "device_capability": ".current",
    "device_count": ".current",
    "device_name": ".current",
    "hide_all": ".hiding",
    "peak_bytes": ".activity",
    "read": ".activity",
    "read_all": ".activity",
    "read_visibility": ".visibility",
    "rig_from_arguments": ".arguments",
    "rig_from_options": ".arguments",
    "select_device": ".current",
    "survey": ".inventory",
    "use_device": ".current",
    "watch_cuda_start": ".cuda_start",
    "write_visibility": ".hiding",
}

__all__ = list(_MODULE_OF_NAME)
__getattr__, __dir__ = load_late(__name__, _MODULE_OF_NAME)
