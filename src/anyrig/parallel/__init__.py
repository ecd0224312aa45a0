"""One module over a rig: scatter, replicas, gather, loss, shares."""

from .data_parallel import DataParallel
from .explain import explain
from .gather import gather
from .layout import Layout
from .loss import ParallelLoss
from .parallel_apply import parallel_apply
from .replicate import replicate
from .scatter import scatter
from .shares import Shares
from .spread import spread

__all__ = [
    "DataParallel",
    "Layout",
    "ParallelLoss",
    "Shares",
    "explain",
    "gather",
    "parallel_apply",
    "replicate",
    "scatter",
    "spread",
]
