"""All findings of a rehearsal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..facts import Finding
from . import (
    blocking_copies,
    busy_lead,
    channels_first,
    free_memory,
    host_waits,
    late_reduction,
    matrix_units,
    pageable_copies,
    rebuilt_replicas,
    recomputation,
    shared_host,
    small_kernels,
    tile_sizes,
    uneven_parts,
)
from .analysis import Analysis

# A new finding is a file of this folder, and a line here.
FINDERS: tuple[Callable[[Analysis], Iterator[Finding]], ...] = (
    shared_host.find,
    blocking_copies.find,
    pageable_copies.find,
    host_waits.find,
    busy_lead.find,
    rebuilt_replicas.find,
    uneven_parts.find,
    small_kernels.find,
    matrix_units.find,
    channels_first.find,
    tile_sizes.find,
    late_reduction.find,
    recomputation.find,
    free_memory.find,
)


def find_all(analysis: Analysis) -> tuple[Finding, ...]:
    """Return what was found, the largest saving first."""
    found = [finding for find in FINDERS for finding in find(analysis)]
    return tuple(sorted(found, key=lambda finding: -(finding.saved_seconds or 0.0)))
