"""anyrig runs a PyTorch model on any rig: no GPU, one, several unequal ones, several machines.

What a script uses is here; the rest is in `anyrig.devices`, `anyrig.transfer`, `anyrig.parallel`,
`anyrig.memory`, `anyrig.checkpoint`, `anyrig.verification`, `anyrig.hazards`, `anyrig.units` and
`anyrig.errors`.
Importing anyrig does nothing and is fast: each name is loaded when it is first used, and PyTorch
with it.
"""

from __future__ import annotations

from .late_names import load_late

TYPE_CHECKING = False  # for type checkers it is true; `typing` takes ten times as long as the rest

if TYPE_CHECKING:
    from . import checkpoint as checkpoint
    from . import devices as devices
    from . import errors as errors
    from . import hazards as hazards
    from . import memory as memory
    from . import parallel as parallel
    from . import rehearsal as rehearsal
    from . import transfer as transfer
    from . import units as units
    from . import verification as verification
    from .checkpoint.load import load as load
    from .checkpoint.resume import resume as resume
    from .checkpoint.save import save as save
    from .cli.device_table import show_utilization as show_utilization
    from .devices.arguments import add_device_arguments as add_device_arguments
    from .devices.arguments import rig_from_arguments as rig_from_arguments
    from .devices.choice import choose as choose
    from .devices.current import current_device as current_device
    from .devices.current import use_device as use_device
    from .devices.device import Device as Device
    from .devices.rig import Rig as Rig
    from .parallel.data_parallel import DataParallel as DataParallel
    from .parallel.losses.parallel_loss import ParallelLoss as ParallelLoss
    from .parallel.plans import Exact as Exact
    from .parallel.plans import Pipeline as Pipeline
    from .parallel.plans import Replicas as Replicas
    from .parallel.plans import Shards as Shards
    from .parallel.ranks.loaders.distribute import distribute as distribute
    from .parallel.ranks.metrics.gather import gather_over_ranks as gather_over_ranks
    from .parallel.ranks.metrics.mean import mean_over_ranks as mean_over_ranks
    from .parallel.spread import spread as spread
    from .parallel.spread_module import explain as explain
    from .planning.fit_value import fit_value as fit_value
    from .processes.group.barrier import barrier as barrier
    from .processes.group.first_rank import only_first_rank as only_first_rank
    from .processes.group.print_once import print_once as print_once
    from .processes.launch import launch as launch
    from .transfer.host_copy import copy_to_host as copy_to_host
    from .transfer.move import move as move
    from .transfer.prefetch import prefetch as prefetch

__version__ = "0.1.0"

# Where each public name lives. A test holds this table, the imports above and the pinned list of
# public names together.
_MODULE_OF_NAME = {
    "DataParallel": ".parallel.data_parallel",
    "Device": ".devices.device",
    "Exact": ".parallel.plans",
    "ParallelLoss": ".parallel.losses.parallel_loss",
    "Pipeline": ".parallel.plans",
    "Replicas": ".parallel.plans",
    "Rig": ".devices.rig",
    "Shards": ".parallel.plans",
    "add_device_arguments": ".devices.arguments",
    "barrier": ".processes.group.barrier",
    "choose": ".devices.choice",
    "copy_to_host": ".transfer.host_copy",
    "current_device": ".devices.current",
    "distribute": ".parallel.ranks.loaders.distribute",
    "explain": ".parallel.spread_module",
    "fit_value": ".planning.fit_value",
    "gather_over_ranks": ".parallel.ranks.metrics.gather",
    "launch": ".processes.launch",
    "load": ".checkpoint.load",
    "mean_over_ranks": ".parallel.ranks.metrics.mean",
    "move": ".transfer.move",
    "only_first_rank": ".processes.group.first_rank",
    "prefetch": ".transfer.prefetch",
    "print_once": ".processes.group.print_once",
    "resume": ".checkpoint.resume",
    "rig_from_arguments": ".devices.arguments",
    "save": ".checkpoint.save",
    "show_utilization": ".cli.device_table",
    "spread": ".parallel.spread",
    "use_device": ".devices.current",
}
_ROOMS = {
    "checkpoint": ".checkpoint",
    "devices": ".devices",
    "errors": ".errors",
    "hazards": ".hazards",
    "memory": ".memory",
    "parallel": ".parallel",
    "rehearsal": ".rehearsal",
    "transfer": ".transfer",
    "units": ".units",
    "verification": ".verification",
}

__all__ = ["__version__", *_MODULE_OF_NAME]
__getattr__, __dir__ = load_late(__name__, _MODULE_OF_NAME | _ROOMS)
