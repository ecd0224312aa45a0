"""How much of each batch each device gets, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ...devices.device import Device
from ...errors import SharesError
from .trial import StepMeasure, Trial

POLICIES = ("even", "speed", "memory")


@dataclass(frozen=True)
class Shares:
    """What each device gets of a batch.

    Attributes:
        weights: one a device, not negative, of any sum; only their ratios count.
        reason: where they come from, for people.
        row_limits: the most rows for which each device has memory; None where that is unknown.
        trial: what the first steps still have to tell; None if the shares are held.
    """

    weights: tuple[float, ...]
    reason: str
    row_limits: tuple[int | None, ...] = ()
    trial: Trial | None = None

    def __post_init__(self) -> None:
        given = ", ".join(f"{weight:g}" for weight in self.weights)
        if not all(0 <= weight < float("inf") for weight in self.weights):
            raise SharesError(f"shares are numbers from zero up; got {given}")
        if not any(self.weights):
            raise SharesError(f"at least one share must be above zero; got {given or 'none'}")
        if self.row_limits and len(self.row_limits) != len(self.weights):
            raise SharesError(f"{len(self.row_limits)} limits for {len(self.weights)} shares")

    @property
    def held(self) -> bool:
        """Whether later steps leave the shares as they are."""
        return self.trial is None

    def split(self, rows: int) -> tuple[int, ...]:
        """Return how many of `rows` each device gets; they sum to `rows`.

        Equal shares are those of `torch.chunk`, as in `torch.nn.DataParallel`: as many as fill
        whole parts, and the last devices get fewer or none. Others are rounded down, and the rows
        left over go to those who lost the largest fraction, the first ones first (the method of
        largest remainders). No device gets more than its limit unless all are at theirs.
        """
        return _split(self.weights, self.row_limits, rows)

    def join_singles(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Return `counts` with no part of one row, unless there is only one row.

        ::

            8 1 1  ──▶  8 2 0         2 1 1 1  ──▶  2 2 1 0  ──▶  3 2 0 0         4 1  ──▶  5 0

        The device with the smallest share gives its single row away: to another single row, or
        else to the device whose part is the smallest relative to its share, within the limits if
        one has room.

        Args:
            counts: how many rows each device has, as from `split`.
        """
        joined = list(counts)
        limits = self.row_limits or (None,) * len(joined)
        while 1 in joined and sum(joined) > 1:
            singles = [i for i, count in enumerate(joined) if count == 1]
            giver = min(singles, key=lambda i: (self.weights[i], -i))
            others = [i for i in singles if i != giver]
            takers = others or [i for i, count in enumerate(joined) if count > 1]
            roomy = [i for i in takers if joined[i] < _or_infinite(limits[i])]
            taker = min(roomy or takers, key=lambda i: ((joined[i] + 1) / self.weights[i], i))
            joined[giver] -= 1
            joined[taker] += 1
        return tuple(joined)

    def measured(self, step: Sequence[StepMeasure]) -> Shares:
        """Return the shares that follow from one more measured step: itself once they are held.

        Args:
            step: what each device did in it, in order.
        """
        if self.trial is None:
            return self
        verdict = self.trial.judge(self.weights, step)
        return replace(
            self,
            weights=verdict.weights,
            reason=verdict.reason or self.reason,
            row_limits=verdict.row_limits or self.row_limits,
            trial=verdict.trial,
        )

    def refuse(self, devices: int) -> None:
        """Raise SharesError: these are not the shares of so many devices."""
        raise SharesError(
            f"{len(self.weights)} shares for {devices} devices; give one for each, in order"
        )

    def __str__(self) -> str:
        total = sum(self.weights)
        return ", ".join(f"{weight / total:.1%}" for weight in self.weights) + f": {self.reason}"


def choose_shares(wanted: str | Sequence[float] | Shares | None, devices: Sequence[Any]) -> Shares:
    """Return the shares of `devices`.

    Args:
        wanted: ``"even"``; ``"speed"``: from published rates, corrected by the first steps' times;
            ``"memory"``: so that all devices are equally full, from the first steps' peaks;
            numbers, one a device; or None: even if the devices are alike or the rates of one are
            unknown, else by published rates. Nothing is measured then: runs are the same.
        devices: the rig's, in order. Only the policies ask what they are.

    Raises:
        SharesError: `wanted` is none of these, or has another length than `devices`.
    """
    if isinstance(wanted, Shares):
        shares = wanted
    elif wanted is None or isinstance(wanted, str):
        shares = _by_policy(wanted, devices)
    else:
        shares = Shares(_numbers(wanted), "given")
    if len(shares.weights) != len(devices):
        shares.refuse(len(devices))
    return shares


def _numbers(wanted: Sequence[float]) -> tuple[float, ...]:
    try:
        return tuple(float(weight) for weight in wanted)
    except (TypeError, ValueError):
        raise SharesError(
            f"cannot read {wanted!r} as shares; give one number a device, or one of "
            f"{', '.join(map(repr, POLICIES))}"
        ) from None


def _by_policy(wanted: str | None, devices: Sequence[Any]) -> Shares:
    known = [device for device in devices if isinstance(device, Device)]
    even = (1.0,) * len(devices)
    if wanted is None:
        return _by_default(known) if len(known) == len(devices) else Shares(even, "even")
    if wanted == "even":
        return Shares(even, "even, as asked")
    totals = tuple(d.total_bytes if isinstance(d, Device) else None for d in devices)
    if wanted == "speed":
        speeds = _published_speeds(known)
        begin = "even" if speeds is None else _RATES
        return Shares(
            speeds or even,
            f"by speed: {begin} to begin with, until the first steps' times are known",
            trial=Trial("speed", totals),
        )
    if wanted == "memory":
        return Shares(
            even if None in totals else tuple(float(total or 0) for total in totals),
            "by memory: as its sizes are, until the first steps' peaks are known",
            trial=Trial("memory", totals),
        )
    raise SharesError(
        f"no way to share is called {wanted!r}; take one of {', '.join(map(repr, POLICIES))}, or "
        "give one number a device"
    )


def _by_default(devices: Sequence[Device]) -> Shares:
    """Return shares that follow from what the devices are, so that every run has the same."""
    even = (1.0,) * len(devices)
    # By name: of two equal GPUs the one with a screen may report less memory.
    names = list(dict.fromkeys(device.name for device in devices))
    if len(names) == 1:
        return Shares(even, "even: the devices are alike")
    speeds = _published_speeds(devices)
    if speeds is None:
        unknown = ", ".join(dict.fromkeys(device.name for device in devices if not device.spec))
        return Shares(
            even,
            f"even: the devices differ, and the rates of {unknown} are unknown; "
            'shares="speed" measures them, or give one number a device',
        )
    return Shares(speeds, f"{_RATES} of {', '.join(names)}")


_RATES = "by published FLOP/s and memory bandwidth"


def _published_speeds(devices: Sequence[Device]) -> tuple[float, ...] | None:
    """Return speeds relative to each other by data sheet, or None if a device is unknown.

    A step is bound now by arithmetic, now by memory; by how much depends on the model. The
    geometric mean of both rates is as far from the one as from the other.
    """
    specs = [device.spec for device in devices if device.spec is not None]
    if not specs or len(specs) < len(devices):
        return None
    speeds = [(spec.strength * spec.memory_bytes_per_second) ** 0.5 for spec in specs]
    return tuple(speed / max(speeds) for speed in speeds)


@lru_cache(maxsize=256)
def _split(
    weights: tuple[float, ...], row_limits: tuple[int | None, ...], rows: int
) -> tuple[int, ...]:
    if rows < 0:
        raise SharesError(f"a batch has no {rows} rows")
    limits = row_limits or (None,) * len(weights)
    if len(set(weights)) == 1 and not any(limit is not None for limit in limits):
        return _chunks(rows, len(weights))
    fixed: dict[int, int] = {}
    while True:
        open_weights = [0.0 if i in fixed else weight for i, weight in enumerate(weights)]
        left = rows - sum(fixed.values())
        if left and not any(open_weights):  # all are full; who fails will say so by name
            return _largest_remainders(weights, rows)
        given = _largest_remainders(open_weights, left) if left else (0,) * len(weights)
        over = {
            i: limit
            for i, limit in enumerate(limits)
            if i not in fixed and limit is not None and given[i] > limit
        }
        if not over:
            return tuple(fixed.get(i, count) for i, count in enumerate(given))
        fixed |= over


def _or_infinite(limit: int | None) -> float:
    return float("inf") if limit is None else limit


def _chunks(rows: int, parts: int) -> tuple[int, ...]:
    size = -(-rows // parts)
    return tuple(max(0, min(size, rows - size * part)) for part in range(parts))


def _largest_remainders(weights: Sequence[float], rows: int) -> tuple[int, ...]:
    # Exact in fractions, so that it is the same everywhere and sums to the rows.
    total = sum(map(Fraction, weights))
    quotas = [rows * Fraction(weight) / total for weight in weights]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(counts)), key=lambda i: (counts[i] - quotas[i], i))
    for i in by_remainder[: rows - sum(counts)]:
        counts[i] += 1
    return tuple(counts)
