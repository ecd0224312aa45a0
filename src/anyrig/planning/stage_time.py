"""`StageTime`: how long the slowest stage of a pipeline computes, which bounds other pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .arrangement import PIPELINE, Arrangement


@dataclass(frozen=True)
class StageTime:
    """What the busiest GPU of a rehearsed pipeline computes in a step.

    Blocks are divided among as many stages in a similar way, and take no less time in more parts,
    so that similar pipelines have a GPU that computes for about as long.

    Attributes:
        pipeline: the pipeline.
        seconds: for how long its busiest GPU computes.
    """

    pipeline: Arrangement
    seconds: float

    @classmethod
    def of(cls, arrangement: Arrangement, facts: dict[str, Any]) -> tuple[StageTime, ...]:
        """Return what a rehearsal says; nothing for other plans, and with recomputation."""
        seconds = step_of_pipeline(arrangement, facts)
        if seconds is None:
            return ()
        most = max((one["busy_share"] or 0.0 for one in facts["devices"]), default=0.0)
        return (cls(arrangement, seconds * most),)

    def bounds(self, other: Arrangement) -> bool:
        """Return whether a plan is a pipeline whose busiest GPU computes at least as long."""
        one = self.pipeline
        return (
            other.plan == PIPELINE
            and other.replicas == one.replicas
            and other.has_two_stages == one.has_two_stages
            and (other.has_two_backwards or not one.has_two_backwards)
            and other.micro_batches >= one.micro_batches
        )


def step_of_pipeline(arrangement: Arrangement, facts: dict[str, Any]) -> float | None:
    """Return the seconds of a rehearsed step; None for other plans, and with recomputation."""
    typical = facts.get("typical_step")
    recomputes = arrangement.value("checkpoint", "never") != "never"
    if arrangement.plan != PIPELINE or recomputes or not typical:
        return None
    return float(typical["seconds"])
