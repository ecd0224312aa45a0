"""Data parallelism: replicas, shards, and dividing batches among devices and ranks.

Names are loaded when they are first used. `spread` and `explain` are in `anyrig` itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..late_names import load_late

if TYPE_CHECKING:
    from .batch.gather import gather as gather
    from .batch.scatter import scatter as scatter
    from .data_parallel import DataParallel as DataParallel
    from .group.loaders.distribute import distribute as distribute
    from .group.metrics.gather import gather_over_ranks as gather_over_ranks
    from .group.metrics.mean import mean_over_ranks as mean_over_ranks
    from .layout import Layout as Layout
    from .losses.loss import ParallelLoss as ParallelLoss
    from .plans import Exact as Exact
    from .plans import Pipeline as Pipeline
    from .plans import Replicas as Replicas
    from .plans import Shards as Shards
    from .replicas.replicas import replicate as replicate
    from .replicas.side_by_side import parallel_apply as parallel_apply
    from .shares.shares import Shares as Shares

_MODULE_OF_NAME = {
    "DataParallel": ".data_parallel",
    "Exact": ".plans",
    "Layout": ".layout",
    "ParallelLoss": ".losses.loss",
    "Pipeline": ".plans",
    "Replicas": ".plans",
    "Shards": ".plans",
    "Shares": ".shares.shares",
    "distribute": ".group.loaders.distribute",
    "gather": ".batch.gather",
    "gather_over_ranks": ".group.metrics.gather",
    "mean_over_ranks": ".group.metrics.mean",
    "parallel_apply": ".replicas.side_by_side",
    "replicate": ".replicas.replicas",
    "scatter": ".batch.scatter",
}

__all__ = list(_MODULE_OF_NAME)
__getattr__, __dir__ = load_late(__name__, _MODULE_OF_NAME)
