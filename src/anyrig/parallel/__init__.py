"""One module over a rig: scatter, replicas, gather, loss, shares."""

from .batch.gather import gather
from .batch.scatter import scatter
from .data_parallel import DataParallel
from .explain import explain
from .layout import Layout
from .losses.loss import ParallelLoss
from .replicas.parallel_apply import parallel_apply
from .replicas.replicate import replicate
from .shares.shares import Shares
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
