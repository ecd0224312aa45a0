"""R02: copies from the host that block it, and could run while the previous step computes.

::

    now        |copy|= compute =|copy|= compute =|
    then       |= compute =|= compute =|
               |copy|      |copy|               on a stream of its own, from pinned memory

The saving: each copy gets the time of a copy from pinned memory, a stream of its own and a launch
one step ahead; the work after the copy still waits for it, but the host does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..facts import Finding
from .analysis import Analysis
from .change import Change
from .host_copies import PAGEABLE, PINNED, as_if_pinned, copies_named, line_of_most, waits_for
from .side_stream import edges_ahead

CODE = "R02"


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield the finding if the steps would be shorter with copies ahead."""
    copies = _blocking(analysis)
    if not copies:
        return
    saved = analysis.saving(copied_ahead(analysis))
    if not analysis.matters(saved):
        return
    share = sum(map(analysis.seconds_on_record, copies)) / analysis.schedule.steps
    yield Finding(
        CODE,
        "Copies from the host block it",
        line_of_most(analysis, copies),
        saved,
        None,
        f"The host waits for copies of {1e3 * share:.3g} ms in each step, and no kernel runs "
        "meanwhile.",
        "Take the batches from anyrig.prefetch(loader, rig): it pins them, and copies the next "
        "one while the GPU computes.",
    )


def copied_ahead(analysis: Analysis) -> Change:
    """Return the change that copies one step ahead."""
    copies = _blocking(analysis)
    return replace(as_if_pinned(analysis, copies), edges=edges_ahead(analysis, copies))


def _blocking(analysis: Analysis) -> list[int]:
    candidates = copies_named(analysis, lambda name: name in (PAGEABLE, PINNED))
    return sorted(set(waits_for(analysis, candidates).values()))
