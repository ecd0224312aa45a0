"""R08: kernels so small that it takes longer to launch them than to run them.

The saving: the launches of kernels take no time, as in a CUDA graph, and each kernel takes longer
by the gap between two kernels of a graph. The waits and copies of other findings are first taken
out of both schedules, so that launches that only show because of them do not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ...virtual.predicted_seconds import graph_node_seconds
from ...virtual.record_reading import IntervalKind
from ..facts import Finding
from .analysis import Analysis
from .blocking_copies import copied_ahead
from .change import Change, typical_seconds
from .host_waits import without_waits
from .pageable_copies import from_pinned_memory

CODE = "R08"


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield the finding if a step on one device would be shorter as a CUDA graph."""
    if len(analysis.gpus) != 1:
        return
    tasks = analysis.schedule.tasks
    kernels = [
        place
        for place in analysis.of_kind(IntervalKind.KERNEL)
        if tasks[place].launch is not None
    ]  # fmt: skip
    (gpu,) = analysis.gpus.values()
    gap = graph_node_seconds(gpu)
    captured = {place: tasks[place].seconds + gap for place in kernels}
    captured |= {launch: 0.0 for place in kernels if (launch := tasks[place].launch) is not None}
    remedied = (
        without_waits(analysis) | from_pinned_memory(analysis) | copied_ahead(analysis)
    )  # fmt: skip
    before = typical_seconds(analysis.schedule, remedied)
    after = typical_seconds(analysis.schedule, remedied | Change(seconds=captured))
    saved = before - after
    if not analysis.matters(saved):
        return
    count = len(kernels) // analysis.schedule.steps
    seconds = sum(tasks[place].seconds for place in kernels) / max(len(kernels), 1)
    yield Finding(
        CODE,
        "Many small kernels: the GPU waits for launches",
        _line_of_most_launches(analysis, kernels),
        saved,
        None,
        f"The host launches {count} kernels in a step, which take {1e6 * seconds:.3g} us on "
        "average, less than their launches.",
        "Capture the step in a CUDA graph (torch.cuda.graph), or use "
        'torch.compile(mode="reduce-overhead"); or make the kernels larger with larger batches.',
    )


def _line_of_most_launches(analysis: Analysis, kernels: list[int]) -> str | None:
    seconds: dict[str | None, float] = defaultdict(float)
    for place in kernels:
        launch = analysis.schedule.tasks[place].launch
        assert launch is not None
        seconds[analysis.line(place)] += analysis.schedule.tasks[launch].seconds
    return max(seconds, key=seconds.__getitem__, default=None)
