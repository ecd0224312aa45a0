"""The work of a program as distinct records, and how often each occurs."""

from __future__ import annotations

from collections import Counter
from typing import Any


def distinct_records(log: dict[str, list[float]]) -> dict[str, Any]:
    """Return the columns of the distinct records of a work log, and how often each occurs."""
    columns = {name: column for name, column in log.items() if name != "seconds"}
    counts = Counter(zip(*columns.values(), strict=True))
    return {
        "counts": list(counts.values()),
        "columns": dict(zip(columns, map(list, zip(*counts, strict=True)), strict=True)),
    }
