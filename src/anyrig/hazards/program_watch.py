"""Watch a whole program, or every rank of a group, for hazards, and report at the end.

::

    anyrig run --watch hazards ── makes a folder, and names it to each rank
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
from typing import TYPE_CHECKING, Any

from ..programs.watcher import Order, Watcher

if TYPE_CHECKING:
    from ..programs.program import Program
    from .hazard import Hazard
    from .watch import Hazards, HazardWatch

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

    @property
    def order(self) -> Order:
        """The order for a process to watch its program so."""
        return Order(f"{__name__}:{ProgramWatch.__name__}", [self.fails, self.sums, self.folder])


class ProgramWatch(Watcher):
    """Watches the program of this process from its import of torch on."""

    def __init__(self, options: HazardOptions) -> None:
        self._options = options
        self._watch: HazardWatch | None = None
        self._hazards: Hazards | None = None

    @classmethod
    def from_options(cls, options: Any) -> ProgramWatch:
        """Return a watch with the options of a `HazardOptions.order`."""
        return cls(HazardOptions(*options))

    def begin(self) -> None:
        """Begin to watch. Imports torch."""
        from .watch import HazardWatch

        self._watch = HazardWatch(raise_errors=False, sums=self._options.sums, warn=False)
        self._hazards = self._watch.__enter__()

    def finish(self, program: Program, status: int) -> int:
        """Report what was found, or leave it in the folder; return the exit status."""
        if self._watch is None or self._hazards is None:
            return status  # the program did not import torch
        self._watch.__exit__(None, None, None)
        from ..virtual.installed import installation

        watches_values = self._options.sums or installation() is not None
        if self._options.folder is None:
            found = list(self._hazards)
            return report(found, status, fails=self._options.fails, watches_values=watches_values)
        rank = int(os.environ.get("RANK", "0"))
        hazards = [replace(hazard, rank=rank).as_json() for hazard in self._hazards]
        record = {"hazards": hazards, "facts": self._hazards.facts.as_json()}
        text = json.dumps({**record, "watches_values": watches_values})
        Path(self._options.folder, f"{rank}.json").write_text(text)
        return status


@contextmanager
def watched_ranks(
    options: HazardOptions | None,
) -> Iterator[tuple[Order | None, Callable[[int], int]]]:
    """Watch the ranks that are started within the block, or do nothing if `options` is None.

    Yields the order for each rank, and a function that reports once they have ended:
    it gets their exit status and returns the exit status of the command.
    """
    if options is None:
        yield None, lambda status: status
        return
    folder = tempfile.mkdtemp(prefix="anyrig-hazards-")
    try:
        yield (
            replace(options, folder=folder).order,
            lambda status: _report_ranks(Path(folder), status, options),
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_ranks(folder: Path) -> list[Hazard]:
    """Return what the ranks have found, and where they differ."""
    from .hazard import Hazard
    from .ranks import RankFacts, compare_ranks

    records = _read_records(folder)
    found = [Hazard.from_json(each) for record in records for each in record["hazards"]]
    facts = [RankFacts.from_json(record["facts"]) for record in records]
    return [*found, *compare_ranks(facts)]


def _read_records(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.json"), key=lambda file: int(file.stem))
    return [json.loads(file.read_text()) for file in files]


def _report_ranks(folder: Path, status: int, options: HazardOptions) -> int:
    watches_values = all(record["watches_values"] for record in _read_records(folder))
    hazards = read_ranks(folder)
    return report(hazards, status, fails=options.fails, watches_values=watches_values)


def report(
    hazards: Sequence[Hazard], status: int, *, fails: bool, watches_values: bool = True
) -> int:
    """Print hazards to standard error and return the exit status.

    Args:
        hazards: what was found.
        status: the exit status of the program.
        fails: whether hazards are failures.
        watches_values: whether writes to values that backward had saved would have been found.
    """
    count = f"{len(hazards)} hazard{'s' if len(hazards) > 1 else ''}" if hazards else "no hazards"
    lines = [f"anyrig: {count} found", *map(str, hazards)]
    if not watches_values:
        lines[0] += (
            "; writes to values that backward had saved were not looked for, which takes "
            "--watch hazards,sums here"
        )
    sys.stderr.write("\n".join(lines) + "\n")
    return FAILED if hazards and fails and status == 0 else status
