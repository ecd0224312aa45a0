"""R07: a batch size that is not divisible by the number of devices.

::

    cuda:0  |==== 3 samples ====|         A batch of 10 takes as long as one of 12.
    cuda:1  |==== 3 samples ====|
    cuda:2  |==== 3 samples ====|
    cuda:3  |= 1 =|   idle      |

The saving: the kernels of each device take as long as those of the fullest device, and its copies
as long as for that many bytes. This is a step with a full batch; its time is then scaled down to
the samples that a step has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from ...virtual.record_reading import IntervalKind
from ..facts import Finding
from .analysis import Analysis
from .change import Change
from .host_copies import line_of_most
from .replica_calls import flops_by_device

CODE = "R07"

_ROUNDING = 1e-6


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield the finding if the devices get unequal parts."""
    if len({gpu.key for gpu in analysis.gpus.values()}) != 1 or len(analysis.gpus) < 2:
        return
    flops, shared = flops_by_device(analysis)
    if len(flops) < 2:
        return
    most, mean = max(flops.values()), sum(flops.values()) / len(flops)
    if most - mean <= _ROUNDING * most:
        return
    full = analysis.step_seconds - analysis.saving(_with_full_parts(analysis, flops, shared))
    saved = analysis.step_seconds - full * mean / most
    if not analysis.matters(saved):
        return
    parts = _parts(analysis, flops)
    yield Finding(
        CODE,
        "Batch sizes are not divisible by the number of GPUs",
        line_of_most(analysis, shared),
        saved,
        None,
        f"The GPUs get {parts} of a batch, and the step takes as long as the largest part.",
        f"Use a batch size that {len(flops)} divides"
        + (f", such as {_full_batch(analysis, flops)}." if analysis.samples else "."),
    )


def _with_full_parts(
    analysis: Analysis, flops: Mapping[tuple[int, int], float], shared: Iterable[int]
) -> Change:
    fullest = max(flops, key=flops.__getitem__)
    lines = {analysis.line(place) for place in shared}
    kernels: dict[tuple[int, int], list[int]] = defaultdict(list)
    copies: dict[int, list[int]] = defaultdict(list)
    seconds: dict[int, float] = {}
    for place, task in enumerate(analysis.schedule.tasks):
        device = analysis.device(place)
        if device not in flops or device is None:
            continue
        if task.kind == IntervalKind.KERNEL and analysis.line(place) in lines:
            kernels[device].append(place)
        elif task.kind == IntervalKind.COPY:
            copies[analysis.flow(place)].append(place)
    for flow, places in copies.items():
        devices = [device for place in places if (device := analysis.device(place)) is not None]
        part = min(flops[device] for device in devices)
        for place in places if flow >= 0 else ():
            # This also scales the fixed latency of a copy, which is short.
            seconds[place] = analysis.schedule.tasks[place].seconds * flops[fullest] / part
    for places in kernels.values():
        if len(places) == len(kernels[fullest]):
            for place, full in zip(places, kernels[fullest], strict=True):
                seconds[place] = analysis.schedule.tasks[full].seconds
    return Change(seconds=seconds)


def _shares(analysis: Analysis, flops: Mapping[tuple[int, int], float]) -> list[int]:
    assert analysis.samples is not None
    total = sum(flops.values())
    return [round(analysis.samples * flops[device] / total) for device in sorted(flops)]


def _parts(analysis: Analysis, flops: Mapping[tuple[int, int], float]) -> str:
    if analysis.samples is None:
        total = sum(flops.values())
        return ", ".join(f"{100 * flops[device] / total:.0f} %" for device in sorted(flops))
    return f"{', '.join(map(str, _shares(analysis, flops)))} samples"


def _full_batch(analysis: Analysis, flops: Mapping[tuple[int, int], float]) -> int:
    return len(flops) * max(_shares(analysis, flops))
