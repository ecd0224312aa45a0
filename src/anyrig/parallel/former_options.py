"""The options of `spread` that preceded plans, converted to the plan that they mean.

They go once the programs that were written with them have been changed.
"""

from __future__ import annotations

from typing import Any

from ..errors import SpreadError
from .plans import Exact, Pipeline, Plan, Replicas, Shards

_OF_REPLICAS = ("shares", "sync_batch_norm", "ddp")
_OF_PIPELINES = ("micro_batches", "schedule", "checkpoint", "split_points", "replicas")
_WAYS = ("auto", "replicate", "shard", "pipeline", "split")


def plan_from(plan: Plan | None, former: dict[str, Any]) -> Plan | None:
    """Return `plan`, or the plan that former options mean.

    Raises:
        SpreadError: both were given, or the options mean no plan.
        TypeError: an option has never been one.
    """
    if not former:
        return plan
    given = {name: value for name, value in former.items() if value is not None}
    how = given.pop("how", "auto")
    shards = given.pop("logical_shards", None)
    known = {*_OF_REPLICAS, *_OF_PIPELINES}
    for name in given.keys() - known:
        raise TypeError(f"spread() got an unexpected keyword argument {name!r}")
    if plan is not None or how not in _WAYS:
        raise SpreadError(
            f"spread was given plan={plan!r} and {former}; give a plan only: Replicas(), Shards(), "
            "Pipeline() or Exact(12), which have the other options"
        )
    if how == "split":
        given.setdefault("micro_batches", 1)
    found: Plan | None = None
    taken: tuple[str, ...] = _OF_REPLICAS
    if how in ("pipeline", "split"):
        taken = _OF_PIPELINES
    elif how == "shard":
        taken = ()
    for name in given.keys() - {*taken}:
        raise SpreadError(f"{name}= does not go with how={how!r}; see the plan that has it")
    if taken == _OF_PIPELINES:
        found = Pipeline(**given)
    elif how == "shard":
        found = Shards()
    elif given or how == "replicate" or shards is not None:
        found = Replicas(**given)
    if shards is not None:
        assert isinstance(found, Replicas | Shards)
        found = Exact(shards, found)
    return found
