"""`Tried`: an arrangement, and what its rehearsal says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..rehearsal.comparison.prices import Prices
from ..rehearsal.comparison.rehearsed_apart import RehearsedApart
from ..virtual.rig import VirtualRig
from .arrangement import PIPELINE, Arrangement
from .candidate import Candidate, Verdict, judge
from .workload import Workload

# What a GPU does, and what that is in a plan.
WAYS = {
    "busy": "computing",
    "waiting": "waiting for transfers, collectives or other GPUs",
    "idle": "idle, as nothing was launched",
}


@dataclass(frozen=True)
class Tried:
    """One rehearsal of a plan. None means unknown.

    Attributes:
        rig: the rig.
        arrangement: the plan, and the number of processes.
        candidate: whether it fits, and its times.
        samples: the samples of a step, each counted once.
        peak_bytes: the memory of the fullest GPU.
        seconds_by_way: for how long the GPUs compute, wait and are idle in a step, on average.
        workload: what the step takes in all.
        unused: the indices of GPUs for which the plan has no work.
    """

    rig: VirtualRig
    arrangement: Arrangement
    candidate: Candidate
    samples: int | None
    peak_bytes: int | None
    seconds_by_way: dict[str, float]
    workload: Workload
    unused: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        rig: VirtualRig,
        arrangement: Arrangement,
        ended: RehearsedApart,
        prices: Prices | None,
    ) -> Tried:
        """Return what a rehearsal says."""
        facts = ended.facts
        samples = None if facts is None else _samples_of(arrangement, rig, facts)
        if facts is not None and samples is not None and facts.get("typical_step"):
            typical = facts["typical_step"]
            rate = samples / typical["seconds"] if typical["seconds"] else None
            facts = {**facts, "typical_step": {**typical, "samples_per_second": rate}}
        ended = RehearsedApart(ended.status, facts, ended.last_line)
        candidate = judge(rig, None, ended, prices)
        if facts is None or not candidate.fits:
            return cls(rig, arrangement, candidate, samples, None, {}, Workload())
        devices = facts["devices"]
        seconds = candidate.step_seconds or 0.0
        unused = _unused(arrangement, rig, facts)
        gpus = len(devices) + len(unused)  # of which one may stand for all
        ways = {way: sum(one[f"{way}_share"] or 0.0 for one in devices) for way in WAYS}
        ways["idle"] += len(unused)
        ways = {way: seconds * shares / gpus for way, shares in ways.items()}
        peak = max(one["peak"]["total_bytes"] or 0 for one in devices)
        workload = Workload.of(arrangement, rig, facts, samples)
        return cls(rig, arrangement, candidate, samples, peak, ways, workload, unused)

    @property
    def verdict(self) -> Verdict:
        """Whether it fits."""
        return self.candidate.verdict

    @property
    def seconds(self) -> float | None:
        """The time of a typical step."""
        return self.candidate.step_seconds

    def seconds_for(self, samples: int | None) -> float | None:
        """Return the time of a typical step, scaled to the given number of samples."""
        if self.seconds is None or not samples or not self.samples:
            return self.seconds
        return self.seconds * samples / self.samples


def _unused(arrangement: Arrangement, rig: VirtualRig, facts: dict[str, Any]) -> tuple[int, ...]:
    if arrangement.processes > 1:  # each rank has a GPU
        return ()
    used = {one["index"] for one in facts["devices"]}
    return tuple(index for index in range(len(rig.devices)) if index not in used)


def _samples_of(arrangement: Arrangement, rig: VirtualRig, facts: dict[str, Any]) -> int | None:
    """Return the samples of a step, each counted once: all ranks of a pipeline load the same."""
    counts = [step["samples"] for step in facts.get("steps", ()) if step.get("samples")]
    if not counts:
        return None
    if arrangement.plan == PIPELINE and arrangement.processes > 1:
        return int(counts[-1] * arrangement.replicas // len(rig.devices))
    return int(counts[-1])
