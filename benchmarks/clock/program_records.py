"""The work records of training programs: recorded in a file, or run on virtual GPUs now."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import training_programs
from .programs import Programs


def measured_programs(folder: Path, arguments: Sequence[str]) -> Programs:
    """Return the programs in `folder`, or those in the file after ``--recorded``."""
    recorded = _path_after("--recorded", arguments)
    return _programs_of(_run(folder) if recorded is None else recorded.read_text())


def grouped_programs(folder: Path, arguments: Sequence[str]) -> Programs | None:
    """Return models with grouped convolutions that are not in `folder`, if ``--grouped`` is given.

    The file after it is one of timm's results, as `training_programs.py` describes, or has the
    lines that this script printed. Models with the same work, such as those that differ in
    their weights only, count once.
    """
    given = _path_after("--grouped", arguments)
    if given is None:
        return None
    text = _run(folder, given) if given.suffix == ".csv" else given.read_text()
    return _distinct(_programs_of(text))


def _path_after(option: str, arguments: Sequence[str]) -> Path | None:
    return Path(arguments[arguments.index(option) + 1]) if option in arguments else None


def _run(folder: Path, *results: Path) -> str:
    script = [sys.executable, training_programs.__file__, str(folder)]
    workers = [
        subprocess.Popen(
            [*script, str(part), "2", *map(str, results)], stdout=subprocess.PIPE, text=True
        )
        for part in range(2)
    ]
    return "".join(worker.communicate(timeout=1800)[0] for worker in workers)


def _programs_of(text: str) -> Programs:
    lines = sorted(line for line in text.splitlines() if line.startswith("{"))
    return Programs([json.loads(line) for line in lines])


def _distinct(programs: Programs) -> Programs:
    """Return `programs` without those whose work is that of an earlier one."""
    by_work: dict[str, dict[str, Any]] = {}
    for step in programs.steps:
        by_work.setdefault(json.dumps([step["layout"], step["counts"], step["columns"]]), step)
    return Programs(list(by_work.values()))
