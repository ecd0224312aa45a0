"""The search for the best arrangements of a rig, in few rehearsals.

::

    seconds
      |   ○           ○ a bound: all kernels, and the gaps of the plan's schedule
      | ● ┊     ○     ● rehearsed; what it takes beyond its bound is expected
      | ┊ ○  ●  ┊       of the plans that are like it
      | ○    ┊  ○
      |      ○          next is the lowest expectation

One plan of each kind comes first. A plan whose bound does not fit, or is not below the best so far,
is never rehearsed; nor is one that demands of the program what made another plan fail.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..virtual.rig import VirtualRig
from .arrangement import PIPELINE, REPLICAS, SHARDS, Arrangement
from .candidate import Verdict
from .tried import Tried
from .workload import Workload

SPEED, PRICE, MEMORY = "speed", "price", "memory"
# A plan is worth a rehearsal if it is expected to take no more than this many times the best.
_WORTH = 1.05
# After this many rehearsals without a fit, no plan is expected to fit.
_HOPELESS = 10
# By what to order plans while nothing is known of the program.
_UNKNOWN = Workload(state_bytes=1.0, activation_bytes=1.0)
# How far apart two plans are that differ in a value, or of which ranks follow one, in doublings of
# micro-batches.
_OTHER_VALUE, _OTHER_FAMILY = 2.0, 1.0


@dataclass
class PlanSearch:
    """What to rehearse next, by what was found.

    Attributes:
        rig: the rig.
        arrangements: all plans to choose from.
        by: what to choose by: `SPEED`, `PRICE` or `MEMORY`.
        most_tries: the most rehearsals.
    """

    rig: VirtualRig
    arrangements: Sequence[Arrangement]
    by: str
    most_tries: int
    tried: list[Tried] = field(default_factory=list)
    workload: Workload = field(default_factory=Workload)
    _asked: set[Arrangement] = field(default_factory=set)

    def next(self) -> Arrangement | None:
        """Return the plan to rehearse next; None if none is worth it."""
        if len(self._asked) >= self.most_tries:
            return None
        left = self.without_ruled_out(self.left)
        first = next((one for one in _probes(left, self.rig) if self._is_new(one)), None)
        if first is not None:
            chosen: Arrangement | None = first
        elif any(one.candidate.fits for one in self.tried):
            chosen = self._simplest_before(self._most_promising(left), left)
        else:
            chosen = self._smallest(left)
        if chosen is not None:
            self._asked.add(chosen)
        return chosen

    def note(self, tried: Tried) -> None:
        """Take what was found."""
        self._asked.add(tried.arrangement)
        self.tried.append(tried)
        if tried.candidate.fits:
            self.workload = self.workload.least(tried.workload)

    @property
    def progress(self) -> str:
        """How many plans were asked for, with those whose rehearsal runs, of the most."""
        return f"{len(self._asked)} of at most {self.most_tries}"

    def ranked(self) -> list[Tried]:
        """Return the plans that fit, the best first; those that fit for certain before others."""
        fitting = [one for one in self.tried if one.candidate.fits]
        return sorted(
            fitting, key=lambda one: (one.verdict is not Verdict.CERTAIN, self._cost(one))
        )

    @property
    def samples(self) -> int | None:
        """The samples of a step; by them, plans with other samples are compared."""
        return self.workload.samples

    @property
    def impossible(self) -> int:
        """How many plans take more memory than the rig has, by their bounds."""
        return sum(self.workload.cannot_fit(one, self.rig) for one in self.left)

    @property
    def ruled_out(self) -> int:
        """How many plans would fail as a plan did that was tried."""
        left = self.left
        return len(left) - len(self.without_ruled_out(left))

    @property
    def left(self) -> list[Arrangement]:
        """The plans that were not asked for."""
        return [one for one in self.arrangements if one not in self._asked]

    def without_ruled_out(self, arrangements: Sequence[Arrangement]) -> list[Arrangement]:
        """Return the plans that do not demand of the program what made a plan fail.

        That is what no plan of its class demanded that ran; or, if there is no such demand, all
        that it demanded together.
        """
        allowed: dict[str, set[str]] = defaultdict(set)
        for one in self.tried:
            if one.candidate.fits:
                allowed[one.arrangement.plan] |= one.arrangement.demands
        failed = {
            (one.arrangement.plan, one.arrangement.demands)
            for one in self.tried
            if one.verdict is Verdict.FAILED
        }
        wrong = [(plan, demands - allowed[plan] or demands) for plan, demands in failed]
        return [
            one
            for one in arrangements
            if not any(one.plan == plan and one.demands >= demands for plan, demands in wrong)
        ]

    def _is_new(self, arrangement: Arrangement) -> bool:
        """Return whether no plan of its family was asked for."""
        return all(one.family != arrangement.family for one in self._asked)

    def _cost(self, tried: Tried) -> float:
        if self.by == MEMORY:
            return tried.peak_bytes or math.inf
        return tried.seconds_for(self.samples) or math.inf

    def bound(self, arrangement: Arrangement) -> float:
        """Return how long a step of a plan takes at least, or how much memory; 0 if unknown."""
        if self.by == MEMORY:
            return self._even_bound(arrangement)
        slowest = self.workload.slowest_stage_seconds(arrangement)
        launching = self.workload.launch_seconds(arrangement, len(self.rig.devices))
        return max(self._even_bound(arrangement), slowest, launching)

    def _even_bound(self, arrangement: Arrangement) -> float:
        """Return the bound if all GPUs have as much to do; what differs is in a plan's excess."""
        gpus = len(self.rig.devices)
        if self.by == MEMORY:
            return self.workload.least_bytes(arrangement, gpus)
        return self.workload.least_seconds(arrangement, gpus) or 0.0

    def _smallest(self, left: Iterable[Arrangement]) -> Arrangement | None:
        """Return the plan that takes the least memory."""
        if len(self._asked) >= _HOPELESS:
            return None
        gpus = len(self.rig.devices)
        return min(left, key=lambda one: _UNKNOWN.least_bytes(one, gpus), default=None)

    def _most_promising(self, left: Iterable[Arrangement]) -> Arrangement | None:
        best = next((self._cost(one) for one in self.ranked()), math.inf)
        possible = [
            one
            for one in left
            if not self.workload.cannot_fit(one, self.rig)
            and not self.workload.is_too_fine(one)
            and not self._ran_out_nearby(one)
            and self.bound(one) < best
        ]
        excesses = [
            (one.arrangement, self._cost(one) / self._even_bound(one.arrangement))
            for one in self.tried
            if one.candidate.fits and self._even_bound(one.arrangement)
        ]
        expected = {one: self._even_bound(one) * _excess_near(one, excesses) for one in possible}
        chosen = min(expected, key=lambda one: expected[one], default=None)
        return None if chosen is None or expected[chosen] > _WORTH * best else chosen

    def _simplest_before(
        self, chosen: Arrangement | None, left: Sequence[Arrangement]
    ) -> Arrangement | None:
        """Return `chosen`, or the plan that demands the least of what `chosen` does.

        If plans of this class failed and none ran, that rehearsal says the most about the others.
        """
        verdicts = [
            one.verdict
            for one in self.tried
            if chosen is not None and one.arrangement.plan == chosen.plan
        ]
        if chosen is None or Verdict.FAILED not in verdicts or {*verdicts} > {Verdict.FAILED}:
            return chosen
        simpler = [one for one in left if chosen.demands >= one.demands and one.plan == chosen.plan]
        return min(simpler, key=lambda one: (len(one.demands), self.bound(one)))

    def _ran_out_nearby(self, arrangement: Arrangement) -> bool:
        """Return whether a plan of the family with no higher bound of memory ran out of it."""
        gpus = len(self.rig.devices)
        states = self.workload.state_bytes or 1.0
        known = self.workload.activation_bytes or states  # or one of the two hides the other
        workload = Workload(state_bytes=states, activation_bytes=known)
        least = workload.least_bytes(arrangement, gpus)
        return any(
            one.verdict is Verdict.NO
            and one.arrangement.family == arrangement.family
            and workload.least_bytes(one.arrangement, gpus) <= least
            for one in self.tried
        )


def _probes(arrangements: Iterable[Arrangement], rig: VirtualRig) -> list[Arrangement]:
    """Return a usual plan of each family, the quickest to rehearse first."""
    gpus = len(rig.devices)

    def is_usual(one: Arrangement) -> bool:
        if one.plan != PIPELINE:
            return not one.values
        usual = 2 ** math.ceil(math.log2(2 * gpus))
        return (
            one.processes == 1
            and one.micro_batches == min(usual, 64)
            and one.value("schedule", "") == "1f1b"
            and one.value("checkpoint", "never") == "never"
        )

    order = [(REPLICAS, True), (SHARDS, True), (REPLICAS, False), (PIPELINE, False)]
    usual = [one for one in arrangements if is_usual(one)]
    return sorted(usual, key=lambda one: order.index(one.family))


def _excess_near(arrangement: Arrangement, excesses: Sequence[tuple[Arrangement, float]]) -> float:
    """Return the ratio of time to bound of the most similar plan that was tried.

    The ratio is 1 if no plan of this kind was tried.
    """
    alike = [each for each in excesses if each[0].plan == arrangement.plan]
    return min(alike, key=lambda each: _distance(each[0], arrangement), default=(None, 1.0))[1]


def _distance(one: Arrangement, other: Arrangement) -> float:
    names = ("schedule", "checkpoint", "reshard_after_forward", "replicas")
    values = sum(one.value(name, "") != other.value(name, "") for name in names)
    doublings = abs(math.log2(one.micro_batches / other.micro_batches))
    return doublings + _OTHER_VALUE * values + _OTHER_FAMILY * (one.family != other.family)
