"""How much of each batch each device gets, and why."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ...devices.device import Device
from ...errors import SharesError
from .trial import (
    GOOD_ENOUGH,
    MEASURED_STEPS,
    SPEED_ROUNDS,
    WARM_UP_STEPS,
    StepMeasure,
    Trial,
    fastest,
    fit_memory,
    fit_speed,
    highest_peaks,
    sample_limits,
)

_POLICIES = ("auto", "even", "speed", "memory")
_NAMES = ", ".join(map(repr, _POLICIES))
_RATES = "by published FLOP/s and memory bandwidth"
_NO_PEAKS = (
    "by memory: held as at first, because no step showed its peak on each device: the CPU reports "
    "none, and on a GPU an earlier peak hides it until torch.accelerator.reset_peak_memory_stats()"
)
_NO_LIMIT = sys.maxsize


@dataclass(frozen=True)
class Shares:
    """How a batch is shared among the devices.

    Attributes:
        weights: one for each device, not negative; only their ratios count.
        reason: why, for the user.
        sample_limits: the most samples for which each device has memory; None where unknown.
        trial: the measurements of the first steps; None if the shares are held.
    """

    weights: tuple[float, ...]
    reason: str
    sample_limits: tuple[int | None, ...] = ()
    trial: Trial | None = None

    def __post_init__(self) -> None:
        given = ", ".join(f"{weight:g}" for weight in self.weights)
        if not all(0 <= weight < float("inf") for weight in self.weights):
            raise SharesError(f"shares are numbers from zero up; got {given}")
        if not any(self.weights):
            raise SharesError(f"at least one share must be above zero; got {given or 'none'}")
        if self.sample_limits and len(self.sample_limits) != len(self.weights):
            limits = len(self.sample_limits)
            raise SharesError(f"{limits} limits for {len(self.weights)} shares; give one for each")

    @property
    def held(self) -> bool:
        """Whether later steps leave the shares as they are."""
        return self.trial is None

    def split(self, samples: int) -> tuple[int, ...]:
        """Return how many of `samples` each device gets; they sum to `samples`.

        Equal shares divide as `torch.chunk` does, others by the method of largest remainders. No
        device exceeds its limit unless all devices are at their limits.
        """
        return _split(self.weights, self._limits(), samples)

    def join_singles(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Return `counts` with no part of one sample, unless there is only one sample.

        ::

            8 1 1  ──▶  8 2 0         2 1 1 1  ──▶  2 2 1 0  ──▶  3 2 0 0         4 1  ──▶  5 0

        The device with the smallest share gives its single sample to another device with a single
        sample, or else to the device with the smallest part relative to its share. A device below
        its limit is preferred.
        """
        joined = list(counts)
        limits = self._limits()
        while 1 in joined and sum(joined) > 1:
            singles = [i for i, count in enumerate(joined) if count == 1]
            giver = min(singles, key=lambda i: (self.weights[i], -i))
            others = [i for i in singles if i != giver]
            takers = others or [i for i, count in enumerate(joined) if count > 1]
            roomy = [i for i in takers if joined[i] < limits[i]]
            taker = min(roomy or takers, key=lambda i: ((joined[i] + 1) / self.weights[i], i))
            joined[giver] -= 1
            joined[taker] += 1
        return tuple(joined)

    def measured(self, step: Sequence[StepMeasure]) -> Shares:
        """Return the shares after one more step; `step` has a measure for each device."""
        trial = self.trial
        if trial is None:
            return self
        steps = (*trial.steps, tuple(step))
        peaks = highest_peaks([trial.peaks or (None,) * len(step), step])
        if len(steps) < WARM_UP_STEPS + MEASURED_STEPS:
            return replace(self, trial=replace(trial, steps=steps, peaks=peaks))
        limits = sample_limits(peaks, trial.total_bytes) or self.sample_limits
        held = replace(self, sample_limits=limits, trial=None)
        if trial.kind == "memory":
            samples = fit_memory(peaks, trial.total_bytes)
            if samples is None:
                return replace(held, reason=_NO_PEAKS)
            reason = "by memory: measured peaks of the first steps"
            return replace(held, weights=samples, reason=reason)
        rounds = (*trial.rounds, fastest(steps[WARM_UP_STEPS:]))
        fitted = fit_speed(rounds, self.weights)
        if fitted is None:
            return replace(held, reason="by speed: held as at first, because no step was timed")
        seconds, samples = fitted
        seen = ", ".join(
            f"{m.samples} samples" + (f" in {m.seconds * 1e3:.4g} ms" if m.seconds else "")
            for m in rounds[-1]
        )
        slowest = max(m.seconds or 0.0 for m in rounds[-1])
        if slowest <= GOOD_ENOUGH * seconds:
            return replace(held, reason=f"by speed: {seen}; held")
        if len(rounds) == SPEED_ROUNDS:
            return replace(held, weights=samples, reason=f"by speed: from {seen}; held")
        trial = Trial(trial.kind, trial.total_bytes, rounds=rounds, peaks=peaks)
        reason = f"by speed: from {seen}; still measured"
        return replace(held, weights=samples, reason=reason, trial=trial)

    def _limits(self) -> tuple[int, ...]:
        limits = self.sample_limits or (None,) * len(self.weights)
        return tuple(_NO_LIMIT if limit is None else limit for limit in limits)

    def __str__(self) -> str:
        total = sum(self.weights)
        return ", ".join(f"{weight / total:.1%}" for weight in self.weights) + f": {self.reason}"


def read_shares(wanted: str | Sequence[float] | Shares) -> str | Shares:
    """Return the policy or the shares that `wanted` names; raise SharesError if it names none."""
    if isinstance(wanted, Shares):
        return wanted
    if isinstance(wanted, str):
        if wanted in _POLICIES:
            return wanted
        raise SharesError(
            f"shares={wanted!r} is not a way to share a batch; use one of {_NAMES}, or give a "
            "number per device"
        )
    try:
        weights = tuple(map(float, wanted))
    except (TypeError, ValueError):
        raise SharesError(
            f"cannot read {wanted!r} as shares; give a number per device, or one of {_NAMES}"
        ) from None
    return Shares(weights, "given")


def choose_shares(wanted: str | Sequence[float] | Shares, devices: Sequence[Any]) -> Shares:
    """Return the shares of the devices of a rig; see `anyrig.Replicas`.

    ``"auto"`` means even shares if the devices are alike or the rates of one are unknown, else
    shares by published rates, so that every run divides in the same way. Only policies read what
    `devices` are. Raise SharesError unless `wanted` fits them.
    """
    read = read_shares(wanted)
    shares = _by_policy(read, devices) if isinstance(read, str) else read
    if len(shares.weights) != len(devices):
        raise SharesError(
            f"{len(shares.weights)} shares for {len(devices)} devices; give one for each, in order"
        )
    return shares


def _by_policy(wanted: str, devices: Sequence[Any]) -> Shares:
    even = (1.0,) * len(devices)
    if wanted == "even":
        return Shares(even, "even, as asked")
    if wanted == "auto" and not all(isinstance(device, Device) for device in devices):
        return Shares(even, "even")
    speeds = _published_speeds(devices)
    if wanted == "auto":
        # Compare names: of two equal GPUs, the one with a screen may report less memory.
        names = list(dict.fromkeys(device.name for device in devices))
        if len(names) == 1:
            return Shares(even, "even: the devices are alike")
        if speeds is not None:
            return Shares(speeds, f"{_RATES} of {', '.join(names)}")
        unknown = ", ".join(dict.fromkeys(device.name for device in devices if not device.spec))
        return Shares(
            even,
            f"even: the devices differ, and the rates of {unknown} are unknown; "
            'shares="speed" measures them, or give a number per device',
        )
    totals = tuple(d.total_bytes if isinstance(d, Device) else None for d in devices)
    if wanted == "speed":
        start = _RATES if speeds else "even"
        reason = f"by speed: {start} to begin with, until the first steps' times are known"
        return Shares(speeds or even, reason, trial=Trial("speed", totals))
    sizes = even if None in totals else tuple(float(total or 0) for total in totals)
    reason = "by memory: by the devices' sizes, until the first steps' peaks are known"
    return Shares(sizes, reason, trial=Trial("memory", totals))


def _published_speeds(devices: Sequence[Any]) -> tuple[float, ...] | None:
    """Return the devices' relative speeds by their data sheets, or None if one is unknown.

    The speed is the geometric mean of FLOP/s and memory bandwidth, since a model is bound by both.
    """
    specs = [device.spec if isinstance(device, Device) else None for device in devices]
    speeds = [(spec.strength * spec.memory_bytes_per_second) ** 0.5 for spec in specs if spec]
    if not speeds or len(speeds) < len(devices):
        return None
    return tuple(speed / max(speeds) for speed in speeds)


@lru_cache(maxsize=256)
def _split(weights: tuple[float, ...], limits: tuple[int, ...], samples: int) -> tuple[int, ...]:
    if samples < 0:
        raise SharesError(f"a batch cannot have {samples} samples")
    parts = len(weights)
    if len(set(weights)) == 1 and min(limits) == _NO_LIMIT:
        size = -(-samples // parts)
        return tuple(max(0, min(size, samples - size * part)) for part in range(parts))
    fixed: dict[int, int] = {}
    while True:
        open_weights = [0.0 if i in fixed else weight for i, weight in enumerate(weights)]
        left = samples - sum(fixed.values())
        if left and not any(open_weights):  # all devices are full
            return _largest_remainders(weights, samples)
        given = _largest_remainders(open_weights, left) if left else (0,) * parts
        over = {i: limits[i] for i in range(parts) if i not in fixed and given[i] > limits[i]}
        if not over:
            return tuple(fixed.get(i, count) for i, count in enumerate(given))
        fixed |= over


def _largest_remainders(weights: Sequence[float], samples: int) -> tuple[int, ...]:
    # Fractions are exact: the result is the same everywhere, and sums to the samples.
    total = sum(map(Fraction, weights))
    quotas = [samples * Fraction(weight) / total for weight in weights]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(counts)), key=lambda i: (counts[i] - quotas[i], i))
    for i in by_remainder[: samples - sum(counts)]:
        counts[i] += 1
    return tuple(counts)
