"""`Workload`: what a step takes in total, whatever the plan: a lower bound for every plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..virtual.rig import VirtualRig
from .arrangement import PIPELINE, REPLICAS, SHARDS, Arrangement
from .launch_time import LaunchTime
from .stage_time import StageTime

# The share of a step in which devices wait, as in docs/pipeline.md: (n - 1) / (v m + n - 1) with n
# devices, m micro-batches and this v. With 2 n - 1 micro-batches or more, the last two schedules
# fill this time with the next step.
_FILL = {
    "gpipe": 1,
    "1f1b": 1,
    "interleaved": 2,
    "zero-bubble": 3,
    "zero-bubble-h2": 3,
    "zero-bubble-v": 6,
}
_OVERLAPPING = ("zero-bubble-h2", "zero-bubble-v")
# A forward pass takes a third of a step, so computing it again takes a third more.
_RECOMPUTED = 1 / 3


@dataclass(frozen=True)
class Workload:
    """Lower bounds on what a step takes on a rig, from the rehearsals so far. None means unknown.

    Attributes:
        busy_seconds: for how long all GPUs of the rig would compute, if none ever waited.
        state_bytes: the parameters, gradients and optimizer's state of the model, once.
        activation_bytes: the activations of the whole batch.
        samples: the samples of a step.
        stages: the slowest stages of the pipelines that were rehearsed.
        launches: what the host took to launch them.
    """

    busy_seconds: float | None = None
    state_bytes: float | None = None
    activation_bytes: float | None = None
    samples: int | None = None
    stages: tuple[StageTime, ...] = ()
    launches: tuple[LaunchTime, ...] = ()

    @classmethod
    def of(
        cls, arrangement: Arrangement, rig: VirtualRig, facts: dict[str, Any], samples: int | None
    ) -> Workload:
        """Return what a rehearsal that ran to its end says."""
        gpus = len(rig.devices)
        alike = gpus if facts.get("assumed_ranks") else 1
        typical = facts.get("typical_step")
        shares = [one["busy_share"] or 0.0 for one in facts["devices"]]
        busy = typical["seconds"] * alike * sum(shares) / gpus if typical else None
        pipelines = StageTime.of(arrangement, facts), LaunchTime.of(arrangement, facts)
        kinds = [one.get("kinds_at_peak") or {} for one in facts["memory"]]
        if not all(kinds):
            return cls(busy, None, None, samples, *pipelines)
        states = [
            sum(each.get(name, 0) for name in ("parameters", "gradients", "optimizer"))
            for each in kinds
        ]
        activations = alike * sum(each.get("activations", 0) for each in kinds)
        if arrangement.plan == REPLICAS:
            return cls(busy, max(states), activations, samples)
        state = alike * sum(states) / arrangement.replicas
        activations = activations if arrangement.plan == SHARDS else None
        return cls(busy, state, activations, samples, *pipelines)

    def least(self, other: Workload) -> Workload:
        """Return the lesser of what two rehearsals say."""
        return Workload(
            _least(self.busy_seconds, other.busy_seconds),
            _least(self.state_bytes, other.state_bytes),
            _least(self.activation_bytes, other.activation_bytes),
            self.samples or other.samples,
            (*self.stages, *other.stages),
            (*self.launches, *other.launches),
        )

    def least_seconds(self, arrangement: Arrangement, gpus: int) -> float | None:
        """Return how long a step takes at least; None if that is unknown."""
        if self.busy_seconds is None:
            return None
        if arrangement.plan != PIPELINE:
            return self.busy_seconds
        devices, count = gpus // arrangement.replicas, arrangement.micro_batches
        schedule = str(arrangement.value("schedule", "gpipe"))
        idle = (devices - 1) / (_FILL[schedule] * count + devices - 1)
        if schedule in _OVERLAPPING and count >= 2 * devices - 1:
            idle = 0.0
        again = {"never": 0.0, "always": 1.0, "except_last": 1 - 1 / count}
        extra = again[str(arrangement.value("checkpoint", "never"))] * _RECOMPUTED
        return self.busy_seconds * (1 + extra) / (1 - idle)

    def slowest_stage_seconds(self, arrangement: Arrangement) -> float:
        """Return how long the busiest GPU of a pipeline computes at least; 0 if unknown."""
        return max((one.seconds for one in self.stages if one.bounds(arrangement)), default=0.0)

    def launch_seconds(self, arrangement: Arrangement, gpus: int) -> float:
        """Return how long the host launches a pipeline at least; 0 if unknown."""
        return max((one.seconds_for(arrangement, gpus) for one in self.launches), default=0.0)

    def least_bytes(self, arrangement: Arrangement, gpus: int) -> float:
        """Return how much memory the GPUs take on average, at least; 0 if that is unknown."""
        states, activations = self.state_bytes or 0.0, self.activation_bytes or 0.0
        if arrangement.plan == REPLICAS:
            return states + activations / gpus
        devices = gpus // arrangement.replicas
        if arrangement.plan == SHARDS:
            return states / devices + activations / gpus
        if arrangement.value("checkpoint", "never") != "never":
            return states / devices
        count = arrangement.micro_batches
        in_flight = count
        if arrangement.value("schedule", "gpipe") != "gpipe":
            in_flight = min(count, (devices + 1) // 2)
        return (states + activations / arrangement.replicas * in_flight / count) / devices

    def is_too_fine(self, arrangement: Arrangement) -> bool:
        """Return whether there are more micro-batches than samples."""
        if self.samples is None:
            return False
        return arrangement.micro_batches * arrangement.replicas > self.samples

    def cannot_fit(self, arrangement: Arrangement, rig: VirtualRig) -> bool:
        """Return whether an arrangement takes more memory than the rig has."""
        gpus = len(rig.devices)
        most = sum(device.memory_bytes for device in rig.devices)
        return self.least_bytes(arrangement, gpus) * gpus > most


def _least(one: float | None, other: float | None) -> float | None:
    known = [each for each in (one, other) if each is not None]
    return min(known, default=None)
