"""What the first steps show about the shares: arithmetic over measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# The first step with new shapes allocates memory and tunes kernels, so it is not measured.
WARM_UP_STEPS = 1
MEASURED_STEPS = 2
# From the second round on, fixed time and time for each sample can be told apart.
SPEED_ROUNDS = 4
# Shares are held once other shares would make the slowest device faster by this factor at most.
GOOD_ENOUGH = 1.02
# Two rounds determine a slope if their samples differ by more than this fraction.
TELLING_FRACTION = 0.02
# Kept free for what the measured steps did not need: longer samples, other kernels.
SPARE_FRACTION = 0.05


@dataclass(frozen=True)
class StepMeasure:
    """What one device did in one step; None where unknown."""

    samples: int
    seconds: float | None = None  # busy, forward and backward
    base_bytes: int | None = None  # allocated when the step began: parameters, optimizer state
    peak_bytes: int | None = None  # most allocated; None also if an earlier peak hides it


@dataclass(frozen=True)
class Trial:
    """The measurements so far, from which shares are computed."""

    kind: Literal["speed", "memory"]  # what becomes equal: times, or how full the devices are
    total_bytes: tuple[int | None, ...]  # memory of each device; None where unknown
    steps: tuple[tuple[StepMeasure, ...], ...] = ()  # of this round, warm-up included
    rounds: tuple[tuple[StepMeasure, ...], ...] = ()  # each device's fastest of each earlier round
    peaks: tuple[StepMeasure | None, ...] = ()  # of each device, the highest so far


def highest_peaks(
    steps: Sequence[Sequence[StepMeasure | None]],
) -> tuple[StepMeasure | None, ...]:
    """Return the step of each device with the highest known peak, the last of equal ones."""

    def peak(measure: StepMeasure | None) -> int:
        return -1 if measure is None or measure.peak_bytes is None else measure.peak_bytes

    highest = [max(reversed(measures), key=peak) for measures in zip(*steps, strict=True)]
    return tuple(measure if peak(measure) >= 0 else None for measure in highest)


def fastest(steps: Sequence[Sequence[StepMeasure]]) -> tuple[StepMeasure, ...]:
    """Return the step of each device with the least time for each sample."""

    def seconds_per_sample(m: StepMeasure) -> float:
        return m.seconds / m.samples if m.samples and m.seconds else float("inf")

    return tuple(min(measures, key=seconds_per_sample) for measures in zip(*steps, strict=True))


def fit_speed(
    rounds: Sequence[Sequence[StepMeasure]], weights: Sequence[float]
) -> tuple[float, tuple[float, ...]] | None:
    """Return the seconds after which all devices are done, and their samples; None without times.

    ``seconds = fixed + samples * slope``, where `fixed` covers launches, waiting, and parameters
    and gradients on their way. One round gives the slope with ``fixed = 0``; two rounds with
    different samples give both. A device without samples keeps its ratio to the others.
    """
    step = rounds[-1]
    timed = [i for i, m in enumerate(step) if m.samples and m.seconds]
    if not timed or not sum(weights[i] for i in timed):
        return None
    fixed, slopes = zip(*(_line([measures[i] for measures in rounds]) for i in timed), strict=True)
    seconds, samples = level(sum(step[i].samples for i in timed), fixed, slopes)
    scale = sum(samples) / sum(weights[i] for i in timed)
    found = dict(zip(timed, samples, strict=True))
    return seconds, tuple(found.get(i, weight * scale) for i, weight in enumerate(weights))


def _line(measures: Sequence[StepMeasure]) -> tuple[float, float]:
    """Return a device's fixed seconds and its seconds for each sample."""
    last = measures[-1]
    seconds = last.seconds or 0.0
    for before in reversed(measures[:-1]):
        apart = last.samples - before.samples
        if before.samples and before.seconds and abs(apart) > TELLING_FRACTION * last.samples:
            slope = (seconds - before.seconds) / apart
            fixed = seconds - slope * last.samples
            if slope > 0 and fixed >= 0:  # else noise has tilted the line
                return fixed, slope
            break
    return 0.0, seconds / last.samples


def level(
    samples: float, fixed: Sequence[float], slopes: Sequence[float]
) -> tuple[float, tuple[float, ...]]:
    """Return the level that all devices reach together, and the samples of each device.

    ``level = fixed + samples * slope`` for each device; a device whose `fixed` is above the level
    gets no samples.
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
    """Return the samples of each device that fill all to the same fraction; None without peaks.

    ``peak = fixed + samples * bytes for each sample``. Devices other than the lead determine the
    bytes for each sample. `fixed` is the rest: on the lead also gradients, optimizer state and
    gathered outputs.
    """
    usage = _usage(step)
    if usage is None:
        return None
    fixed, sample_bytes = usage
    # Devices of unknown sizes are assumed to be of one size.
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
    """Return the most samples that fit each device, with some memory spare; None if unknown."""
    usage = _usage(step)
    if usage is None:
        return None
    fixed, sample_bytes = usage
    return tuple(
        None if total is None else max(0, int((total * (1 - SPARE_FRACTION) - used) / sample_bytes))
        for total, used in zip(total_bytes, fixed, strict=True)
    )


def _usage(step: Sequence[StepMeasure | None]) -> tuple[list[float], float] | None:
    """Return each device's fixed bytes, and the bytes for each sample, the same on all devices."""
    known = [m for m in step if m is not None and m.peak_bytes is not None]
    if len(known) < len(step):
        return None
    grown = [
        ((m.peak_bytes or 0) - m.base_bytes, m.samples)
        for m in (known[1:] if len(known) > 1 else known)
        if m.base_bytes is not None and m.samples
    ]
    size, samples = sum(size for size, _ in grown), sum(samples for _, samples in grown)
    if size <= 0:
        return None
    sample_bytes = size / samples
    return [max(0.0, (m.peak_bytes or 0) - sample_bytes * m.samples) for m in known], sample_bytes
