"""R05: a lead device that computes the loss of the whole batch while the replicas wait.

::

    cuda:0  |= forward =|copy|======= loss =======|copy|= backward =|
    cuda:1  |= forward =|                              |= backward =|

    then    |= forward =|= loss =|= backward =|        on each device, for its own part

The saving: what the lead computes between the outputs of the replicas and their gradients takes the
cost model's time for one device's part of the batch, each device launches its own part, and each
copy carries one number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...virtual.predicted_seconds import copy_start_seconds
from ...virtual.record_reading import IntervalKind
from ..facts import Finding
from .analysis import Analysis
from .change import Change
from .host_copies import line_of_most
from .kernel_works import Work
from .replica_calls import flops_by_device

CODE = "R05"

_MEMORY = 0  # `Family` in csrc/time/work.h
_DIVIDED = ("bytes_read", "bytes_written", "footprint_bytes", "rows", "flops")


@dataclass
class _LeadWork:
    """What the lead does for all devices in one step.

    Attributes:
        kernels: the kernels between the last copy to the lead and the first copy back.
        copies: the copies to the lead, and back.
        joining: the kernels of the lead between the copies to it.
    """

    kernels: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    joining: list[int] = field(default_factory=list)


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield the finding if the steps would be shorter with the loss in the replicas."""
    devices = sorted(analysis.gpus)
    flops, shared = flops_by_device(analysis)
    if len({rank for rank, _ in devices}) != 1 or len(flops) < 2:
        return
    replicas = set(shared)
    lead = max(devices, key=lambda device: _seconds_of(analysis, device))
    works = [_lead_work(analysis, step, lead, replicas) for step in range(analysis.schedule.steps)]
    kernels = [place for one in works for place in one.kernels if place in analysis.kernels]
    if not kernels:
        return
    saved = analysis.saving(_divided(analysis, works, kernels, len(devices)))
    if not analysis.matters(saved):
        return
    share = sum(map(analysis.seconds_on_record, kernels)) / analysis.schedule.steps
    yield Finding(
        CODE,
        f"cuda:{lead[1]} computes the loss alone",
        line_of_most(analysis, kernels),
        saved,
        None,
        f"The outputs of all replicas are copied to cuda:{lead[1]}, which computes for "
        f"{1e3 * share:.3g} ms in each step while the other GPUs have nothing to do.",
        "Compute the loss in the module that has the replicas, so that each returns its own: "
        "anyrig.spread(model, rig, loss=criterion) does this if the loss is a mean over samples.",
    )


def _seconds_of(analysis: Analysis, device: tuple[int, int]) -> float:
    return sum(
        analysis.seconds_on_record(place)
        for place in analysis.of_kind(IntervalKind.KERNEL)
        if analysis.device(place) == device
    )


def _lead_work(
    analysis: Analysis, step: int, lead: tuple[int, int], replicas: set[int]
) -> _LeadWork:
    """Return what is launched between the replicas' forward and backward passes."""
    tasks, tracks = analysis.schedule.tasks, analysis.record.tracks
    launched = sorted(
        (launch, place)
        for place, task in enumerate(tasks)
        if task.step == step and (launch := task.launch) is not None
    )
    in_backward = [tracks[tasks[launch].track].in_backward for launch, _ in launched]
    forward = [
        i
        for i, (_, place) in enumerate(launched)
        if place in replicas and analysis.device(place) != lead and not in_backward[i]
    ]
    found = _LeadWork()
    if not forward:
        return found
    copies = [
        i
        for i, (_, place) in enumerate(launched)
        if i > forward[-1] and analysis.flow(place) >= 0
        if tasks[place].kind == IntervalKind.COPY
    ]
    backward = in_backward.index(True) if True in in_backward else 0
    to_lead = [i for i in copies if i < backward]
    lines = {analysis.line(launched[i][1]) for i in to_lead}
    back = [i for i in copies if in_backward[i] and analysis.line(launched[i][1]) in lines]
    if not to_lead or not back:
        return found
    found.copies.extend(launched[i][1] for i in (*to_lead, *back))
    for i in range(forward[-1] + 1, back[0]):
        place = launched[i][1]
        is_kernel = tasks[place].kind == IntervalKind.KERNEL and place not in replicas
        if is_kernel and analysis.device(place) == lead:
            (found.joining if i < to_lead[-1] else found.kernels).append(place)
    return found


def _divided(analysis: Analysis, works: list[_LeadWork], kernels: list[int], parts: int) -> Change:
    tasks, tracks = analysis.schedule.tasks, analysis.record.tracks
    seconds = analysis.repriced(
        {place: [_part(work, parts) for work in analysis.kernels[place].works] for place in kernels}
    )
    for place in kernels:
        launch = tasks[place].launch
        if launch is not None and not tracks[tasks[launch].track].in_backward:
            seconds[launch] = tasks[launch].seconds * parts
    for one in works:
        for place in one.copies:
            device = analysis.device(place)
            assert device is not None
            seconds[place] = copy_start_seconds(analysis.gpus[device])
    return Change(
        seconds=seconds, removed=frozenset(place for one in works for place in one.joining)
    )


def _part(work: Work, parts: int) -> Work:
    """Return the work for one of equal parts of a batch."""
    part = {**work, **{name: work[name] / parts for name in _DIVIDED}}
    if work["family"] != _MEMORY:
        longest = max(("m", "n", "k"), key=lambda name: work[name])
        part[longest] = work[longest] / parts
    return part
