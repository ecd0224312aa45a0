"""Schedules by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from .....errors import SpreadError
from .forward import forward
from .gpipe import gpipe
from .interleaved import interleaved
from .one_forward_one_backward import one_forward_one_backward
from .schedule import Schedule
from .zero_bubble import zero_bubble
from .zero_bubble_few import zero_bubble_few
from .zero_bubble_h2 import zero_bubble_h2
from .zero_bubble_v import zero_bubble_v

ONE_STAGE_PER_DEVICE: Mapping[str, Callable[[int, int], Schedule]] = MappingProxyType(
    {
        "gpipe": gpipe,
        "1f1b": one_forward_one_backward,
        "zero-bubble": zero_bubble,
        "zero-bubble-h2": zero_bubble_h2,
        "zero-bubble-few": zero_bubble_few,
        "forward": forward,
    }
)
SCHEDULE_NAMES = (*ONE_STAGE_PER_DEVICE, "interleaved", "zero-bubble-v")


def check_schedule_name(name: str) -> None:
    """Raise SpreadError if a user cannot choose this schedule; ``"auto"`` is a choice too."""
    known = ("auto", *sorted(set(SCHEDULE_NAMES) - {"forward"}))
    if name not in known:
        valid = ", ".join(map(repr, known))
        raise SpreadError(f"schedule={name!r} is unknown; use one of {valid}")


def fewest_stages_per_device(name: str) -> int:
    """Return the smallest number of stages per device that a named schedule allows."""
    return 1 if name in ONE_STAGE_PER_DEVICE else 2


def make_schedule(
    name: str, devices: int, micro_batches: int, stages_per_device: int | None = None
) -> Schedule:
    """Return the schedule called `name`.

    Args:
        name: one of `SCHEDULE_NAMES`.
        devices: the number of devices.
        micro_batches: the number of micro-batches.
        stages_per_device: None is 2 for ``"interleaved"``, which takes 2 or more, and otherwise
            the only possible number: 2 for ``"zero-bubble-v"``, 1 for the others.

    Raises:
        SpreadError: no schedule has this name, or the schedule does not allow these numbers.
    """
    if name not in SCHEDULE_NAMES:
        valid = ", ".join(map(repr, sorted(SCHEDULE_NAMES)))
        raise SpreadError(f"schedule={name!r} is not a schedule of a pipeline; pass one of {valid}")
    if devices < 1 or micro_batches < 1:
        raise SpreadError(
            f"schedule={name!r} was asked for with {devices} devices and {micro_batches} "
            "micro-batches; pass at least one of each"
        )
    fewest = fewest_stages_per_device(name)
    stages = fewest if stages_per_device is None else stages_per_device
    if stages < fewest or (stages > fewest and name != "interleaved"):
        allowed = "2 or more" if name == "interleaved" else str(fewest)
        raise SpreadError(
            f"schedule={name!r} has {allowed} stages per device, not {stages}; "
            "'1f1b' and 'zero-bubble' have 1, 'zero-bubble-v' has 2, 'interleaved' 2 or more"
        )
    if name == "interleaved":
        return interleaved(devices, micro_batches, stages)
    if name == "zero-bubble-v":
        return zero_bubble_v(devices, micro_batches)
    return ONE_STAGE_PER_DEVICE[name](devices, micro_batches)
