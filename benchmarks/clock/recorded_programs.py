"""Measured programs with the work of one step each, as this repository has them in ``records``.

A file is compressed JSON. Programs share works, and works share records:

    programs   what was measured, and the number of a work
    works      [numbers of records, how often each occurs]
    records    the distinct work records, by column; a number stands for a constant column

A change of the code that describes work (``csrc/time/records``) does not reach a file until it is
written anew by `record_programs.py`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("records")
_WORK = ("counts", "columns")


def read_programs(name: str) -> list[dict[str, Any]]:
    """Return the programs of a file: what was measured, with ``counts`` and ``columns``."""
    file = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    size = max(len(column) for column in file["records"].values() if isinstance(column, list))
    records = {
        column: values if isinstance(values, list) else [values] * size
        for column, values in file["records"].items()
    }
    works = [
        {
            "counts": counts,
            "columns": {name: [values[i] for i in chosen] for name, values in records.items()},
        }
        for chosen, counts in file["works"]
    ]
    return [program | works[program["work"]] for program in file["programs"]]


def write_programs(name: str, about: dict[str, str], programs: Sequence[dict[str, Any]]) -> None:
    """Write a file; `about` states the source and the date of the measurements."""
    columns = sorted(programs[0]["columns"])
    records: dict[tuple[float, ...], int] = {}
    works: dict[str, int] = {}
    rows = []
    for program in programs:
        table = zip(*(program["columns"][column] for column in columns), strict=True)
        chosen = [records.setdefault(record, len(records)) for record in table]
        work = works.setdefault(json.dumps([chosen, program["counts"]]), len(works))
        rows.append({k: v for k, v in program.items() if k not in _WORK} | {"work": work})
    by_column = {
        column: [_short(record[i]) for record in records] for i, column in enumerate(columns)
    }
    text = json.dumps(
        {
            "about": about,
            "records": {k: v[0] if len(set(v)) == 1 else v for k, v in by_column.items()},
            "works": [json.loads(work) for work in works],
            "programs": rows,
        },
        separators=(",", ":"),
    )
    FOLDER.mkdir(exist_ok=True)
    # Without a time, equal programs give an equal file.
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _short(value: float) -> float:
    return int(value) if float(value).is_integer() else value
