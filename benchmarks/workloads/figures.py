"""Output of a benchmark's figures, with the versions that they were measured with."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import anyrig

RESULTS = Path(__file__).parents[1] / "results"


def write_figures(benchmark: str, rows: Sequence[dict[str, Any]], **about: Any) -> None:
    """Write `rows`, the date, the versions and `about` to ``results/<benchmark>.json``."""
    figures = {
        "benchmark": benchmark,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "anyrig": anyrig.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        **about,
        "rows": list(rows),
    }
    RESULTS.mkdir(exist_ok=True)
    path = _path_of(benchmark)
    path.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"written to {path}")


def read_rows(benchmark: str) -> list[dict[str, Any]]:
    """Return the rows that `write_figures` wrote, or none."""
    path = _path_of(benchmark)
    return json.loads(path.read_bytes())["rows"] if path.exists() else []


def _path_of(benchmark: str) -> Path:
    return RESULTS / f"{benchmark.replace('_', '-')}.json"


def bar_text(bar: str, holds: bool | None) -> str:
    """Return `bar` followed by "holds", "MISSED", or "not measured" if `holds` is None."""
    return f"{bar} {'not measured' if holds is None else 'holds' if holds else 'MISSED'}"
