"""Watch a whole program, or every rank of a group, for hazards, and report at the end.

::

    anyrig run --hazards ── makes a folder, names it in ANYRIG_HAZARDS
       ├─ rank 0 ────────── watches from its import of torch on, writes 0.json when it ends
       ├─ rank 1 ────────── 1.json
       └─ reads the files, compares the ranks, removes the folder, reports

A single process reports its own hazards.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .hazard import Hazard
    from .watch import Hazards, HazardWatch

VARIABLE = "ANYRIG_HAZARDS"
# The exit status of a program that would have ended with 0, if hazards are to count as failures.
FAILED = 1


@dataclass(frozen=True)
class HazardOptions:
    """How a program is watched.

    Attributes:
        fails: whether a program with hazards has the exit status 1 instead of 0.
        sums: watch saved values on the CPU and on real GPUs too.
        folder: where the ranks of a group leave what they found; None for a single process.
    """

    fails: bool = False
    sums: bool = False
    folder: str | None = None

    def variables(self) -> dict[str, str]:
        """Return the environment variables that hand the options to a process."""
        return {VARIABLE: json.dumps([self.fails, self.sums, self.folder])}

    @classmethod
    def of_environment(cls) -> HazardOptions | None:
        """Return the options that this process was given, and hide them from its children."""
        text = os.environ.pop(VARIABLE, None)
        return None if text is None else cls(*json.loads(text))


class ProgramWatch:
    """Watches the program of this process from its import of torch on."""

    def __init__(self, options: HazardOptions) -> None:
        self._options = options
        self._watch: HazardWatch | None = None
        self._hazards: Hazards | None = None

    def begin(self) -> None:
        """Begin to watch. Imports torch."""
        from .watch import HazardWatch

        self._watch = HazardWatch(raise_errors=False, sums=self._options.sums, warn=False)
        self._hazards = self._watch.__enter__()

    def finish(self, status: int) -> int:
        """Report what was found, or leave it in the folder; return the exit status.

        Args:
            status: the exit status of the program.
        """
        if self._watch is None or self._hazards is None:
            return status  # the program did not import torch
        self._watch.__exit__(None, None, None)
        if self._options.folder is None:
            return report(list(self._hazards), status, fails=self._options.fails)
        rank = int(os.environ.get("RANK", "0"))
        hazards = [replace(hazard, rank=rank).as_json() for hazard in self._hazards]
        text = json.dumps({"hazards": hazards, "facts": self._hazards.facts.as_json()})
        Path(self._options.folder, f"{rank}.json").write_text(text)
        return status


@contextmanager
def watched_ranks(
    options: HazardOptions | None,
) -> Iterator[tuple[dict[str, str], Callable[[int], int]]]:
    """Watch the ranks that are started within the block, or do nothing if `options` is None.

    Yields the environment variables of the ranks, and a function that reports once they have ended:
    it gets their exit status and returns the exit status of the command.
    """
    if options is None:
        yield {}, lambda status: status
        return
    folder = tempfile.mkdtemp(prefix="anyrig-hazards-")
    try:
        yield (
            replace(options, folder=folder).variables(),
            lambda status: report(read_ranks(Path(folder)), status, fails=options.fails),
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_ranks(folder: Path) -> list[Hazard]:
    """Return what the ranks have found, and where they differ."""
    from .hazard import Hazard
    from .ranks import RankFacts, compare_ranks

    files = sorted(folder.glob("*.json"), key=lambda file: int(file.stem))
    records = [json.loads(file.read_text()) for file in files]
    found = [Hazard.from_json(each) for record in records for each in record["hazards"]]
    facts = [RankFacts.from_json(record["facts"]) for record in records]
    return [*found, *compare_ranks(facts)]


def report(hazards: Sequence[Hazard], status: int, *, fails: bool) -> int:
    """Print hazards to standard error and return the exit status."""
    count = f"{len(hazards)} hazard{'s' if len(hazards) > 1 else ''}" if hazards else "no hazards"
    lines = [f"anyrig: {count} found", *map(str, hazards)]
    sys.stderr.write("\n".join(lines) + "\n")
    return FAILED if hazards and fails and status == 0 else status
