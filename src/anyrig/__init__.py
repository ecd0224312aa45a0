"""anyrig runs a PyTorch model on any rig: no GPU, one, several unequal ones, several machines.

Importing anyrig does nothing and is fast: each public name is loaded when it is first used, and
PyTorch with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cli.device_table import show_utilization as show_utilization
    from .devices.arguments import add_device_arguments as add_device_arguments
    from .devices.arguments import rig_from_arguments as rig_from_arguments
    from .devices.arguments import rig_from_options as rig_from_options
    from .devices.choose import Choice as Choice
    from .devices.choose import Verdict as Verdict
    from .devices.choose import choose as choose
    from .devices.cuda_start import watch_cuda_start as watch_cuda_start
    from .devices.current import current_device as current_device
    from .devices.current import device_capability as device_capability
    from .devices.current import device_count as device_count
    from .devices.current import device_name as device_name
    from .devices.current import select_device as select_device
    from .devices.current import use_device as use_device
    from .devices.defaults import defaults as defaults
    from .devices.device import Device as Device
    from .devices.lease import Lease as Lease
    from .devices.lease import acquire_lease as acquire_lease
    from .devices.link import Link as Link
    from .devices.options import DeviceOption as DeviceOption
    from .devices.options import DisableCudaOption as DisableCudaOption
    from .devices.reading import Reading as Reading
    from .devices.rig import Rig as Rig
    from .devices.survey import peak_bytes as peak_bytes
    from .devices.survey import read as read
    from .devices.survey import survey as survey
    from .devices.visibility import read_visibility as read_visibility
    from .devices.visibility import write_visibility as write_visibility
    from .errors import AnyrigError as AnyrigError
    from .parallel.batch.gather import gather as gather
    from .parallel.batch.scatter import scatter as scatter
    from .parallel.data_parallel import DataParallel as DataParallel
    from .parallel.explain import explain as explain
    from .parallel.group.barrier import barrier as barrier
    from .parallel.group.first_rank import only_first_rank as only_first_rank
    from .parallel.group.loaders.distribute import distribute as distribute
    from .parallel.group.metrics.gather import gather_over_ranks as gather_over_ranks
    from .parallel.group.metrics.mean import mean_over_ranks as mean_over_ranks
    from .parallel.group.print_once import print_once as print_once
    from .parallel.launch import launch as launch
    from .parallel.layout import Layout as Layout
    from .parallel.losses.loss import ParallelLoss as ParallelLoss
    from .parallel.replicas.parallel_apply import parallel_apply as parallel_apply
    from .parallel.replicas.replicate import replicate as replicate
    from .parallel.sharded import Sharding as Sharding
    from .parallel.shares.shares import Shares as Shares
    from .parallel.spread import spread as spread
    from .transfer.host_copy import HostCopy as HostCopy
    from .transfer.host_copy import copy_to_host as copy_to_host
    from .transfer.location import device_of as device_of
    from .transfer.move import move as move
    from .transfer.pin import pin as pin
    from .transfer.prefetch import prefetch as prefetch
    from .units import format_bytes as format_bytes
    from .units import parse_bytes as parse_bytes

__version__ = "0.1.0"

# Where each public name lives. A test holds this table, the imports above and the pinned list of
# public names together.
_MODULE_OF_NAME = {
    "AnyrigError": ".errors",
    "Choice": ".devices.choose",
    "DataParallel": ".parallel.data_parallel",
    "Device": ".devices.device",
    "DeviceOption": ".devices.options",
    "DisableCudaOption": ".devices.options",
    "HostCopy": ".transfer.host_copy",
    "Layout": ".parallel.layout",
    "Lease": ".devices.lease",
    "Link": ".devices.link",
    "ParallelLoss": ".parallel.losses.loss",
    "Reading": ".devices.reading",
    "Rig": ".devices.rig",
    "Sharding": ".parallel.sharded",
    "Shares": ".parallel.shares.shares",
    "Verdict": ".devices.choose",
    "acquire_lease": ".devices.lease",
    "add_device_arguments": ".devices.arguments",
    "barrier": ".parallel.group.barrier",
    "choose": ".devices.choose",
    "copy_to_host": ".transfer.host_copy",
    "current_device": ".devices.current",
    "defaults": ".devices.defaults",
    "device_capability": ".devices.current",
    "device_count": ".devices.current",
    "device_name": ".devices.current",
    "device_of": ".transfer.location",
    "distribute": ".parallel.group.loaders.distribute",
    "explain": ".parallel.explain",
    "format_bytes": ".units",
    "gather": ".parallel.batch.gather",
    "gather_over_ranks": ".parallel.group.metrics.gather",
    "launch": ".parallel.launch",
    "mean_over_ranks": ".parallel.group.metrics.mean",
    "move": ".transfer.move",
    "only_first_rank": ".parallel.group.first_rank",
    "parallel_apply": ".parallel.replicas.parallel_apply",
    "parse_bytes": ".units",
    "peak_bytes": ".devices.survey",
    "pin": ".transfer.pin",
    "prefetch": ".transfer.prefetch",
    "print_once": ".parallel.group.print_once",
    "read": ".devices.survey",
    "read_visibility": ".devices.visibility",
    "replicate": ".parallel.replicas.replicate",
    "rig_from_arguments": ".devices.arguments",
    "rig_from_options": ".devices.arguments",
    "scatter": ".parallel.batch.scatter",
    "select_device": ".devices.current",
    "show_utilization": ".cli.device_table",
    "spread": ".parallel.spread",
    "survey": ".devices.survey",
    "use_device": ".devices.current",
    "watch_cuda_start": ".devices.cuda_start",
    "write_visibility": ".devices.visibility",
}

__all__ = ["__version__", *_MODULE_OF_NAME]


def __getattr__(name: str) -> object:
    module = _MODULE_OF_NAME.get(name)
    if module is None:
        raise AttributeError(f"module 'anyrig' has no attribute {name!r}")
    value = getattr(import_module(module, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
