"""R12: gradients that are reduced one by one after the backward pass has ended.

::

    now     |======== backward ========|= c =|= b =|= a =|
    then    |======== backward ========|
                    |= a =|= b =|  |= c =|               each when its gradient is computed

The saving: each reduction begins when its gradient is computed, in the order of the backward pass,
and slows down concurrent kernels as much as it does on the virtual clock. The kernel that computes
a gradient is assumed to be the next one of the backward pass that writes as many bytes as are
reduced. If there is no such kernel for a reduction, no saving is computed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...virtual.predicted_seconds import multiprocessor_share
from ...virtual.record_reading import IntervalKind
from ..facts import Finding
from .analysis import Analysis
from .change import Change, end_moments
from .host_copies import line_of_most
from .schedule import Edge, Follows

CODE = "R12"

_REDUCTIONS = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True)
class _Reduction:
    """A reduction after the backward pass of a rank.

    Attributes:
        place: the task that reduces.
        seconds: how long the task will take for the gradient that it reduces in the new order.
        gradient: the kernel that computes the gradient.
    """

    place: int
    seconds: float
    gradient: int


@dataclass(frozen=True)
class _Backward:
    """The backward pass of one rank in one step.

    Attributes:
        kernels: its kernels, in the order of their launches.
        reductions: the reductions after the backward pass.
    """

    kernels: tuple[int, ...]
    reductions: tuple[_Reduction, ...]


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield the finding if the steps would be shorter with the reductions during the backward."""
    passes = _backward_passes(analysis)
    reductions = [one for each in passes for one in each.reductions]
    if not reductions:
        return
    change = Change(
        seconds={one.place: one.seconds for one in reductions}
        | {launch: 0.0 for one in reductions if (launch := _launch_of(analysis, one)) is not None},
        edges=_edges(analysis, passes),
    )
    saved = analysis.saving(change | Change(seconds=_slowed_down(analysis, passes, change)))
    if not analysis.matters(saved):
        return
    places = [one.place for one in reductions]
    share = sum(map(analysis.seconds_on_record, places)) / len(passes)
    yield Finding(
        CODE,
        "Gradients are reduced after the backward pass",
        line_of_most(analysis, places),
        saved,
        None,
        f"The reductions of a step take {1e3 * share:.3g} ms, and begin when the backward pass has "
        "ended. The first gradients are ready long before.",
        "Call all_reduce(..., async_op=True) in hooks of register_post_accumulate_grad_hook, and "
        "wait before the optimizer's step; or let anyrig.spread or DistributedDataParallel do it, "
        "which copy the gradients into buckets.",
    )


def _launch_of(analysis: Analysis, reduction: _Reduction) -> int | None:
    return analysis.schedule.tasks[reduction.place].launch


def _backward_passes(analysis: Analysis) -> list[_Backward]:
    """Return the backward passes whose gradients are all reduced afterwards, one by one."""
    tasks, tracks = analysis.schedule.tasks, analysis.record.tracks
    launched: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for place, task in enumerate(tasks):
        if task.launch is not None:
            rank = tracks[task.track].rank
            launched[rank, task.step].append((task.launch, place))
    passes = []
    for pairs in launched.values():
        in_order = [place for _, place in sorted(pairs)]
        kernels = [
            place
            for place in in_order
            if place in analysis.kernels and _is_in_backward(analysis, place)
        ]
        if not kernels:
            return []
        end = tasks[kernels[-1]].launch or 0
        late = [
            place
            for place in in_order
            if tasks[place].kind == IntervalKind.COLLECTIVE
            and analysis.name(place) in _REDUCTIONS
            and not _is_in_backward(analysis, place)
            and (tasks[place].launch or 0) > end
        ]
        matched = _match(analysis, kernels, late)
        if not matched:
            return []
        passes.append(_Backward(tuple(kernels), matched))
    return passes


def _is_in_backward(analysis: Analysis, place: int) -> bool:
    launch = analysis.schedule.tasks[place].launch
    assert launch is not None
    return analysis.record.tracks[analysis.schedule.tasks[launch].track].in_backward


def _match(
    analysis: Analysis, kernels: Sequence[int], late: Sequence[int]
) -> tuple[_Reduction, ...]:
    """Return the reductions in the order in which the gradients are computed; () without a match.

    The first task then reduces the first gradient, whatever it reduces now.
    """
    for order in (late[::-1], late):
        gradients, rest = [], iter(kernels)
        for place in order:
            bytes_ = analysis.bytes(place)
            gradient = next((one for one in rest if _writes(analysis, one) == bytes_), None)
            if gradient is None:
                break
            gradients.append(gradient)
        else:
            tasks = analysis.schedule.tasks
            return tuple(
                _Reduction(place, tasks[reduced].seconds, gradient)
                for place, reduced, gradient in zip(late, order, gradients, strict=True)
            )
    return ()


def _writes(analysis: Analysis, place: int) -> float:
    return sum(work["bytes_written"] for work in analysis.kernels[place].works)


def _edges(analysis: Analysis, passes: Sequence[_Backward]) -> dict[int, tuple[Edge, ...]]:
    """Return the edges of the reductions: each rank's part follows the gradients of all ranks."""
    by_flow: dict[int, list[_Reduction]] = defaultdict(list)
    for one in (one for each in passes for one in each.reductions):
        flow = analysis.flow(one.place)
        by_flow[flow if flow >= 0 else -1 - one.place].append(one)
    edges: dict[int, tuple[Edge, ...]] = {}
    for together in by_flow.values():
        gradients = tuple(Edge(Follows.MOMENT, one.gradient) for one in together)
        for one in together:
            own = tuple(
                edge
                for edge in analysis.schedule.tasks[one.place].edges
                if edge.follows == Follows.TRACK
            )
            edges[one.place] = (*own, *gradients)
    return edges


def _slowed_down(
    analysis: Analysis, passes: Sequence[_Backward], change: Change
) -> dict[int, float]:
    """Return the seconds of kernels that are slower because a reduction runs at the same time.

    The time lost during a reduction is added to the kernel that computes the next gradient.
    """
    tasks = analysis.schedule.tasks
    ends = end_moments(analysis.schedule, change)
    seconds: dict[int, float] = {}
    for each in passes:
        last = each.kernels[-1]
        device = analysis.device(last)
        assert device is not None
        share = multiprocessor_share(analysis.gpus[device])
        slower = [*(one.gradient for one in each.reductions[1:]), last]
        for one, kernel in zip(each.reductions, slower, strict=True):
            together = min(one.seconds, ends[last] - (ends[one.place] - one.seconds))
            lost = share * max(0.0, together)
            seconds[kernel] = seconds.get(kernel, tasks[kernel].seconds) + lost
    return seconds
