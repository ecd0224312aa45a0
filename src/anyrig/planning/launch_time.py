"""`LaunchTime`: how long the host launches the work of a pipeline, which bounds other pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .arrangement import PIPELINE, Arrangement
from .stage_time import step_of_pipeline


@dataclass(frozen=True)
class LaunchTime:
    """What one process that drives all GPUs of a pipeline takes at least to launch a step.

    While a GPU is idle, the host has launched nothing for it: the host launches for the others. So
    the time that the least idle GPU is idle is a lower bound for the host's time. Each micro-batch
    needs the same launches, and recomputation needs more.

    Attributes:
        pipeline: the pipeline.
        seconds: for how long its least idle GPU is idle in a step.
    """

    pipeline: Arrangement
    seconds: float

    @classmethod
    def of(cls, arrangement: Arrangement, facts: dict[str, Any]) -> tuple[LaunchTime, ...]:
        """Return what a rehearsal says; nothing for other plans, ranks, and recomputation."""
        seconds = step_of_pipeline(arrangement, facts)
        if seconds is None or arrangement.processes > 1:
            return ()
        least = min((one["idle_share"] or 0.0 for one in facts["devices"]), default=0.0)
        return (cls(arrangement, seconds * least),)

    def seconds_for(self, other: Arrangement, gpus: int) -> float:
        """Return how long a plan's slowest process launches at least; 0 if unknown."""
        one = self.pipeline
        if other.plan != PIPELINE or (one.has_two_backwards and not other.has_two_backwards):
            return 0.0
        processes = 1 if other.processes == 1 else gpus // other.replicas
        fewer = min(other.micro_batches / one.micro_batches, 1.0)
        return self.seconds * fewer / processes
