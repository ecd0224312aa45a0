"""R03: copies with ``non_blocking=True`` that block, because the memory is not pinned.

The saving: each copy gets the time of one from pinned memory, on its stream, and the host does not
wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..facts import Finding
from .analysis import Analysis
from .change import Change
from .host_copies import NON_BLOCKING, as_if_pinned, copies_named, line_of_most

CODE = "R03"


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield the finding if the steps would be shorter with pinned memory."""
    copies = _pageable(analysis)
    saved = analysis.saving(from_pinned_memory(analysis)) if copies else 0.0
    if not analysis.matters(saved):
        return
    yield Finding(
        CODE,
        "non_blocking copies block, because the memory is not pinned",
        line_of_most(analysis, copies),
        saved,
        None,
        "CUDA copies memory that is not pinned through a buffer of its own: more slowly, and the "
        "host waits, whatever non_blocking says.",
        "Pass pin_memory=True to the DataLoader, or call .pin_memory() on what is copied.",
    )


def from_pinned_memory(analysis: Analysis) -> Change:
    """Return the change that pins what is copied."""
    return as_if_pinned(analysis, _pageable(analysis))


def _pageable(analysis: Analysis) -> list[int]:
    return copies_named(analysis, lambda name: name == NON_BLOCKING)
