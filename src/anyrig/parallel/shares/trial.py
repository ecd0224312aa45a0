"""What the first steps tell about the shares: pure arithmetic over what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# Steps of other shapes than those before allocate memory and tune kernels. So each change of the
# shares is followed by one step that is not measured.
WARM_UP_STEPS = 1
MEASURED_STEPS = 2
# From the second round on, what a device needs whatever its samples is told from what it needs a sample.
SPEED_ROUNDS = 4
# Shares are held once other ones would make the slowest device faster by this factor at most.
GOOD_ENOUGH = 1.02
# Rows in two rounds differ enough to tell a slope if they do so by this fraction.
TELLING_FRACTION = 0.02
# What a device keeps free for what the measured steps did not need: longer samples, other kernels.
SPARE_FRACTION = 0.05


@dataclass(frozen=True)
class StepMeasure:
    """What one device did in one step; what is unknown is None.

    Attributes:
        samples: how many it was given.
        seconds: how long it was busy with them, forward and backward.
        base_bytes: allocated on it when the step began: parameters, optimizer state.
        peak_bytes: the most allocated during the step; None also if an earlier peak hides it.
    """

    samples: int
    seconds: float | None = None
    base_bytes: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Trial:
    """What the first steps have told so far, for shares that follow from them.

    Attributes:
        kind: what they are to make equal: the devices' times, or how full they are.
        total_bytes: memory of each device; None where unknown.
        steps: those since the shares were last corrected, warm-up included.
        rounds: the fastest measured step of each device, for each round before this one.
        peaks: the step of each device with the highest peak seen so far; None without any.
    """

    kind: Literal["speed", "memory"]
    total_bytes: tuple[int | None, ...]
    steps: tuple[tuple[StepMeasure, ...], ...] = ()
    rounds: tuple[tuple[StepMeasure, ...], ...] = ()
    peaks: tuple[StepMeasure | None, ...] = ()


def highest_peaks(
    steps: Sequence[Sequence[StepMeasure | None]],
) -> tuple[StepMeasure | None, ...]:
    """Return the step of each device with the highest known peak, the last of equal ones."""

    def peak(measure: StepMeasure | None) -> int:
        return -1 if measure is None or measure.peak_bytes is None else measure.peak_bytes

    highest = [max(reversed(of_device), key=peak) for of_device in zip(*steps, strict=True)]
    return tuple(measure if peak(measure) >= 0 else None for measure in highest)


def fastest(steps: Sequence[Sequence[StepMeasure]]) -> tuple[StepMeasure, ...]:
    """Return the fastest step of each device: what slows one down (another process, a clock) is
    not the device's. Steps may differ in samples.
    """
    return tuple(
        min(of_device, key=lambda m: m.seconds / m.samples if m.samples and m.seconds else float("inf"))
        for of_device in zip(*steps, strict=True)
    )


def fit_speed(
    rounds: Sequence[Sequence[StepMeasure]], weights: Sequence[float]
) -> tuple[float, tuple[float, ...]] | None:
    """Return the time at which all devices are done together, and their samples; None if none was
    timed.

    ::

        seconds = fixed + samples * seconds a sample      fixed: launches, parameters and gradients on
                                                    their way, waiting for each other

    One round tells ``fixed = 0`` and the quotient; two with different samples tell both. A device
    that got no samples keeps its old ratio to the others.
    """
    step = rounds[-1]
    timed = [i for i, m in enumerate(step) if m.samples and m.seconds]
    if not timed or not sum(weights[i] for i in timed):
        return None
    lines = [_line([rounds_of[i] for rounds_of in rounds]) for i in timed]
    fixed, slopes = zip(*lines, strict=True)
    seconds, samples = level(sum(step[i].samples for i in timed), fixed, slopes)
    scale = sum(samples) / sum(weights[i] for i in timed)
    found = dict(zip(timed, samples, strict=True))
    return seconds, tuple(found.get(i, weight * scale) for i, weight in enumerate(weights))


def _line(measures: Sequence[StepMeasure]) -> tuple[float, float]:
    """Return the fixed seconds of a device and its seconds a sample."""
    last = measures[-1]
    seconds = last.seconds or 0.0
    for before in reversed(measures[:-1]):
        apart = last.samples - before.samples
        if before.samples and before.seconds and abs(apart) > TELLING_FRACTION * last.samples:
            slope = (seconds - before.seconds) / apart
            fixed = seconds - slope * last.samples
            # Noise may tilt the line so that more samples take less time, or none take less than none.
            if slope > 0 and fixed >= 0:
                return fixed, slope
            break
    return 0.0, seconds / last.samples


def level(
    samples: float, fixed: Sequence[float], slopes: Sequence[float]
) -> tuple[float, tuple[float, ...]]:
    """Return the level L that all reach, and who gets how many samples for it.

    ::

        L = fixed + samples * slope     for each; who is above it without samples gets none
    """
    taking = set(range(len(fixed)))
    while True:
        reached = (samples + sum(fixed[i] / slopes[i] for i in taking)) / sum(
            1 / slopes[i] for i in taking
        )
        above = {i for i in taking if fixed[i] > reached}
        if not above:
            return reached, tuple(
                (reached - fixed[i]) / slopes[i] if i in taking else 0.0 for i in range(len(fixed))
            )
        taking -= above


def fit_memory(
    step: Sequence[StepMeasure | None], total_bytes: Sequence[int | None]
) -> tuple[float, ...] | None:
    """Return the samples of each device that make all equally full, or None if no peak is known.

    ::

        peak = fixed + samples * bytes a sample      fixed: what is there without samples; on the lead also
                                               gradients, optimizer state and gathered outputs

    Bytes a sample are told by the devices that are not the lead, and fixed is what they leave
    unexplained. Full is measured as a fraction of each device's memory.
    """
    usage = _usage(step)
    if usage is None:
        return None
    fixed, sample_bytes = usage
    # Without their sizes, devices are taken to be of one size.
    sizes = [float(total or 0) for total in total_bytes] if all(total_bytes) else [1.0] * len(step)
    _, samples = level(
        sum(m.samples for m in step if m),
        [used / size for used, size in zip(fixed, sizes, strict=True)],
        [sample_bytes / size for size in sizes],
    )
    return samples


def sample_limits(
    step: Sequence[StepMeasure | None], total_bytes: Sequence[int | None]
) -> tuple[int | None, ...] | None:
    """Return the most samples for which each device has memory, a little kept free; None: unknown."""
    usage = _usage(step)
    if usage is None:
        return None
    fixed, sample_bytes = usage
    return tuple(
        None if total is None else max(0, int((total * (1 - SPARE_FRACTION) - used) / sample_bytes))
        for total, used in zip(total_bytes, fixed, strict=True)
    )


def _usage(step: Sequence[StepMeasure | None]) -> tuple[list[float], float] | None:
    """Return the fixed bytes of each device, and the bytes a sample of all of them."""
    known = [m for m in step if m is not None and m.peak_bytes is not None]
    if len(known) < len(step):
        return None
    grown = [
        ((m.peak_bytes or 0) - m.base_bytes, m.samples)
        for m in (known[1:] if len(known) > 1 else known)
        if m.base_bytes is not None and m.samples
    ]
    if not grown:
        return None
    sample_bytes = sum(size for size, _ in grown) / sum(samples for _, samples in grown)
    if sample_bytes <= 0:
        return None
    return [max(0.0, (m.peak_bytes or 0) - sample_bytes * m.samples) for m in known], sample_bytes
