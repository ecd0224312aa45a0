"""Where the memory of each device goes: by kind, module, name and line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..late_names import load_late

if TYPE_CHECKING:
    from ..observe.source_line import SourceLine as SourceLine
    from .batch_search import Probe as Probe
    from .batch_size import BatchFit as BatchFit
    from .batch_size import fit_batch_size as fit_batch_size
    from .device_footprint import DeviceFootprint as DeviceFootprint
    from .footprint import Footprint as Footprint
    from .kinds import Kind as Kind
    from .leaks import Leak as Leak
    from .moment import Holding as Holding
    from .moment import Moment as Moment
    from .out_of_memory import OutOfMemoryReport as OutOfMemoryReport
    from .out_of_memory import explain_oom as explain_oom
    from .reason import Cause as Cause
    from .reason import Reason as Reason
    from .recompute.checkpoint_blocks import checkpoint_blocks as checkpoint_blocks
    from .recompute.forward import recompute_blocks as recompute_blocks
    from .recompute.plan import BlockCost as BlockCost
    from .recompute.plan import RecomputePlan as RecomputePlan
    from .surviving_step import SurvivingStep as SurvivingStep
    from .surviving_step import survive as survive
    from .tracking import track as track

_MODULE_OF_NAME = {
    "BatchFit": ".batch_size",
    "BlockCost": ".recompute.plan",
    "Cause": ".reason",
    "DeviceFootprint": ".device_footprint",
    "Footprint": ".footprint",
    "Holding": ".moment",
    "Kind": ".kinds",
    "Leak": ".leaks",
    "Moment": ".moment",
    "OutOfMemoryReport": ".out_of_memory",
    "Probe": ".batch_search",
    "Reason": ".reason",
    "RecomputePlan": ".recompute.plan",
    "SourceLine": "..observe.source_line",
    "SurvivingStep": ".surviving_step",
    "checkpoint_blocks": ".recompute.checkpoint_blocks",
    "explain_oom": ".out_of_memory",
    "fit_batch_size": ".batch_size",
    "recompute_blocks": ".recompute.forward",
    "survive": ".surviving_step",
    "track": ".tracking",
}

__all__ = [*_MODULE_OF_NAME]
__getattr__, __dir__ = load_late(__name__, _MODULE_OF_NAME, after="torch")
