"""Data parallelism: replicas, shards, and dividing batches among devices and ranks.

Names are loaded when they are first used. `spread` and `explain` are in `anyrig` itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..late_names import load_late

if TYPE_CHECKING:
    from .batch_statistics import BatchStatisticsWarning as BatchStatisticsWarning
    from .data_parallel import DataParallel as DataParallel
    from .engines.replicas.replicas import replicate as replicate
    from .engines.replicas.side_by_side import parallel_apply as parallel_apply
    from .layout import Layout as Layout
    from .losses.parallel_loss import ParallelLoss as ParallelLoss
    from .parts.gather import gather as gather
    from .parts.scatter import scatter as scatter
    from .plans import Exact as Exact
    from .plans import Pipeline as Pipeline
    from .plans import Replicas as Replicas
    from .plans import Shards as Shards
    from .ranks.loaders.distribute import distribute as distribute
    from .ranks.metrics.gather import gather_over_ranks as gather_over_ranks
    from .ranks.metrics.mean import mean_over_ranks as mean_over_ranks
    from .shares.shares import Shares as Shares

_MODULE_OF_NAME = {
    "BatchStatisticsWarning": ".batch_statistics",
    "DataParallel": ".data_parallel",
    "Exact": ".plans",
    "Layout": ".layout",
    "ParallelLoss": ".losses.parallel_loss",
    "Pipeline": ".plans",
    "Replicas": ".plans",
    "Shards": ".plans",
    "Shares": ".shares.shares",
    "distribute": ".ranks.loaders.distribute",
    "gather": ".parts.gather",
    "gather_over_ranks": ".ranks.metrics.gather",
    "mean_over_ranks": ".ranks.metrics.mean",
    "parallel_apply": ".engines.replicas.side_by_side",
    "replicate": ".engines.replicas.replicas",
    "scatter": ".parts.scatter",
}

__all__ = list(_MODULE_OF_NAME)
__getattr__, __dir__ = load_late(__name__, _MODULE_OF_NAME)
