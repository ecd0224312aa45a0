"""Choose devices by their present state, with the reasons."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass

from ..errors import NoDeviceError
from ..units import format_bytes, format_count, parse_bytes
from .activity import read_all
from .device import Device
from .held import Held
from .inventory import survey, usable
from .lease import Lease, LeaseHolder, acquire_lease, one_chooser_at_a_time
from .place import Places, as_devices
from .reading import Reading
from .rig import Rig


@dataclass(frozen=True)
class Verdict:
    """Whether a device was taken, and why."""

    device: Device
    taken: bool
    reason: str

    def __str__(self) -> str:
        return f"{self.device}: {'taken' if self.taken else 'not taken'}, {self.reason}"


@dataclass(frozen=True)
class Choice(Held):
    """The chosen devices, and the reason for each device that was or was not chosen.

    Their leases end with the process, on `release`, or at the end of the ``with`` block.
    """

    rig: Rig
    verdicts: tuple[Verdict, ...]
    leases: tuple[Lease, ...] = ()

    def release(self) -> None:
        """Let other processes choose these devices again."""
        _release(self.leases)

    def __str__(self) -> str:
        return "\n".join(str(verdict) for verdict in self.verdicts)


def choose(
    count: int = 1,
    *,
    min_free_bytes: float | str | None = None,
    max_utilization: float | None = None,
    exclude_busy: bool = False,
    lease: bool = True,
    devices: Places | None = None,
) -> Choice:
    """Choose the `count` devices with the most free memory, and then the least work.

    A lease on each device keeps other processes from choosing it until this process ends, even by a
    signal. So two jobs started at the same time, before either has allocated memory, get different
    GPUs. Without an accelerator the CPU is chosen; it is shared, never leased.

    Args:
        count: how many devices to choose.
        min_free_bytes: take only devices with at least this much free memory: a number, or a string
            such as ``"10GiB"``.
        max_utilization: take only devices that are busy at most this fraction of the time, 0 to 1.
        exclude_busy: take only devices that no other process uses.
        lease: whether to take leases and to respect those of other processes.
        devices: choose among these; by default among the working accelerators of the machine.

    Raises:
        NoDeviceError: fewer than `count` devices qualify; the message gives the reason for each.
        ValueError: an argument is out of its range.
        TypeError: an argument is not a number.
    """
    _require_number("count", count, int)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if isinstance(min_free_bytes, str):
        min_free_bytes = _bytes_of(min_free_bytes)
    if min_free_bytes is not None:
        _require_number("min_free_bytes", min_free_bytes, (int, float))
    if max_utilization is not None:
        _require_number("max_utilization", max_utilization, (int, float))
        if not 0 <= max_utilization <= 1:
            raise ValueError(
                f"max_utilization must be from 0 to 1, got {max_utilization}; for 50 % write 0.5"
            )
    candidates = usable(survey()) if devices is None else as_devices(devices)
    readings = sorted(read_all(candidates), key=_preference)
    objections = [
        _objection(reading, min_free_bytes, max_utilization, exclude_busy) for reading in readings
    ]
    with one_chooser_at_a_time() if lease else nullcontext():
        verdicts, leases = _take(count, readings, objections, lease)
    taken = tuple(verdict.device for verdict in verdicts if verdict.taken)
    if len(taken) == count:
        return Choice(Rig(taken, "the most free memory, then the least work"), verdicts, leases)
    _release(leases)
    raise NoDeviceError(
        f"{format_count(count, 'device')} wanted, {len(taken)} suitable: "
        f"{'; '.join(map(str, verdicts))}. "
        "Ask for fewer, lower the thresholds, or wait until a device is free"
    )


def _require_number(name: str, value: object, kinds: type | tuple[type, ...]) -> None:
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")


def _bytes_of(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"min_free_bytes: {error}") from None


def _take(
    count: int, readings: list[Reading], objections: list[str | None], lease: bool
) -> tuple[tuple[Verdict, ...], tuple[Lease, ...]]:
    """Take the first `count` devices that have no objection and can be leased."""
    verdicts: list[Verdict] = []
    leases: list[Lease] = []
    try:
        for reading, objection in zip(readings, objections, strict=True):
            if objection is None and sum(verdict.taken for verdict in verdicts) == count:
                objection = f"{count} wanted, and others have more free memory or less work"
            if objection is None and lease and reading.device.uuid is not None:
                answer = acquire_lease(reading.device.uuid)
                if isinstance(answer, LeaseHolder):
                    objection = f"leased by {answer}"
                else:
                    leases.append(answer)
            reason = objection or _describe(reading)
            verdicts.append(Verdict(reading.device, objection is None, reason))
    except BaseException:
        _release(leases)
        raise
    return tuple(verdicts), tuple(leases)


def _release(leases: Iterable[Lease]) -> None:
    for lease in leases:
        lease.release()


def _preference(reading: Reading) -> tuple[int, float]:
    """Return a sort key: most free bytes first, then least utilization."""
    return (-(reading.free_bytes or 0), reading.utilization or 0.0)


def _objection(
    reading: Reading,
    min_free_bytes: float | None,
    max_utilization: float | None,
    exclude_busy: bool,
) -> str | None:
    """Return why a device does not qualify. An unknown quantity does not meet a threshold."""
    trouble = reading.device.error or reading.error
    if trouble is not None:
        return trouble
    if min_free_bytes is not None and (reading.free_bytes or 0) < min_free_bytes:
        return (
            f"{format_bytes(reading.free_bytes)} free, {format_bytes(int(min_free_bytes))} wanted"
        )
    if max_utilization is not None:
        if reading.utilization is None:
            return "it does not report its utilization"
        if reading.utilization > max_utilization:
            return f"{reading.utilization:.0%} busy, at most {max_utilization:.0%} wanted"
    if exclude_busy and reading.processes is None:
        return _objection_to_bytes(reading)
    if exclude_busy and (strangers := _strangers(reading)):
        return f"in use by {', '.join(strangers)}"
    return None


def _objection_to_bytes(reading: Reading) -> str | None:
    """Return why a device that does not list its processes may be in use; None if it is free."""
    if reading.others_bytes is None:
        return "it does not report who uses it"
    if reading.others_bytes > 0:
        return f"{format_bytes(reading.others_bytes)} held by other processes"
    return None


def _strangers(reading: Reading) -> list[str]:
    others = (process for process in reading.processes or () if process.pid != os.getpid())
    return [f"{process.name or 'process'} {process.pid}" for process in others]


def _describe(reading: Reading) -> str:
    work = "" if reading.utilization is None else f", {reading.utilization:.0%} busy"
    return f"{format_bytes(reading.free_bytes)} free{work}"
