"""`Candidate`: one rig and one value, and what their rehearsal says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from ..rehearsal.comparison.compared_rig import ComparedRig, Outcome, compare_rig
from ..rehearsal.comparison.prices import Prices
from ..rehearsal.comparison.rehearsed_apart import RehearsedApart
from ..virtual.rig import VirtualRig
from .memory_bound import spare_bytes


class Verdict(Enum):
    """Whether a program fits on a rig."""

    CERTAIN = "certain"  # the upper bound of its memory is below what the GPUs have
    LIKELY = "likely"  # it ran when rehearsed, and the upper bound exceeds a GPU
    NO = "no"  # it ran out of memory when rehearsed
    FAILED = "failed"
    UNKNOWN = "unknown"  # the system killed its rehearsal, for the memory of this machine

    @property
    def says_nothing_of_memory(self) -> bool:
        """Whether the rehearsal does not show how much memory the program needs."""
        return self in (Verdict.FAILED, Verdict.UNKNOWN)


_VERDICTS = {
    Outcome.OUT_OF_MEMORY: Verdict.NO,
    Outcome.KILLED: Verdict.UNKNOWN,
    Outcome.FAILED: Verdict.FAILED,
}


@dataclass(frozen=True)
class Candidate:
    """One rehearsal.

    Attributes:
        value: what varied; None if nothing does.
        verdict: whether the program fits.
        spare_bytes: what the upper bound of memory leaves on the fullest GPU, negative if it
            exceeds the GPU; None if the program used no GPU, failed or ran out of memory.
        found: the outcome, the times and the costs.
        gpus: how many GPUs the program used, on its node if one rank stands for all; 0 if unknown.
    """

    value: int | None
    verdict: Verdict
    spare_bytes: int | None
    found: ComparedRig
    gpus: int = 0

    @property
    def fits(self) -> bool:
        """Whether the rehearsal ran to its end."""
        return self.verdict in (Verdict.CERTAIN, Verdict.LIKELY)

    @property
    def step_seconds(self) -> float | None:
        """The time of a typical step."""
        return self.found.step_seconds


def judge(
    rig: VirtualRig,
    value: int | None,
    rehearsed: RehearsedApart,
    prices: Prices | None,
    samples: int | None = None,
) -> Candidate:
    """Return what a rehearsal says.

    Args:
        rig: the rig.
        value: what varied; None if nothing does.
        rehearsed: how the rehearsal ended.
        prices: the prices of GPUs; None for none.
        samples: how many samples a step has, for a program without a `DataLoader`, which would show
            it it; None if unknown.
    """
    facts = rehearsed.facts
    if samples is not None and facts is not None:
        facts = _with_samples(facts, samples)
    found = compare_rig(rig, rehearsed.status, facts, rehearsed.last_line, prices)
    spare = spare_bytes(facts or {}) if found.outcome is Outcome.FITS else None
    if found.outcome is Outcome.FITS:
        verdict = Verdict.LIKELY if spare is not None and spare < 0 else Verdict.CERTAIN
    else:
        verdict = _VERDICTS[found.outcome]
    gpus = len((facts or {}).get("devices", ()))
    return Candidate(value, verdict, spare, replace(found, facts=None), gpus)


def _with_samples(facts: dict[str, Any], samples: int) -> dict[str, Any]:
    """Return the facts with samples per second, computed from `samples` a step if missing."""
    typical = facts.get("typical_step")
    if not typical or typical["samples_per_second"] is not None:
        return facts
    rate = samples / typical["seconds"] if typical["seconds"] else None
    return {**facts, "typical_step": {**typical, "samples_per_second": rate}}
