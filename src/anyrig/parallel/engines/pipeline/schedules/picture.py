"""A timeline as text, one row per device."""

from __future__ import annotations

from collections.abc import Sequence

from .schedule import Task
from .timeline import Timeline


def draw(timeline: Timeline, names: Sequence[str] | None = None, columns: int = 80) -> str:
    """Return a picture of a timeline.

    A task is its letter and micro-batch, followed by dashes while it runs; the letters of a
    device's second, fourth, ... stage are lower case; a dot is idle time::

        device 0  F0F1F2........B0--F3B1--..B2--..B3--
        device 1  ..F0F1....B0--F2B1--F3B2--..B3--....
        device 2  ....F0B0--F1B1--F2B2--F3B3--........

    If that is wider than `columns`, a task is its letter alone, repeated while it runs. If that is
    still wider, the picture is compressed, and short tasks may not be seen.

    Args:
        timeline: what to draw.
        names: the names of the devices; None is ``device 0`` and so on.
        columns: the greatest width of a row.
    """
    if names is None:
        names = [f"device {device}" for device in range(timeline.schedule.devices)]
    margin = max(map(len, names)) + 2
    space = max(1, columns - margin)
    durations = [end - timeline.start_seconds[task] for task, end in timeline.end_seconds.items()]
    shortest = min((seconds for seconds in durations if seconds > 0.0), default=1.0)
    units = timeline.total_seconds / shortest
    label = 1 + len(str(timeline.schedule.micro_batches - 1))
    has_labels = round(units * label) <= space
    width = round(units * label) if has_labels else min(round(units), space)
    per_second = width / timeline.total_seconds if timeline.total_seconds else 0.0
    rows = []
    for name, tasks in zip(names, timeline.schedule.tasks, strict=True):
        row = ["."] * width
        for task in tasks:
            first = round(timeline.start_seconds[task] * per_second)
            end = round(timeline.end_seconds[task] * per_second)
            letter = _letter(timeline, task)
            if has_labels:
                text = f"{letter}{task.micro_batch}"[: end - first].ljust(end - first, "-")
            else:
                text = letter * (end - first)
            row[first:end] = text
        rows.append(name.ljust(margin) + "".join(row))
    return "\n".join(rows)


def _letter(timeline: Timeline, task: Task) -> str:
    device_of_stage = timeline.schedule.device_of_stage
    place = device_of_stage[: task.stage].count(device_of_stage[task.stage])
    return task.work.value if place % 2 == 0 else task.work.value.lower()
