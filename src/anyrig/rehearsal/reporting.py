"""`Reporting`: what a rehearsal writes when the program has ended, and where."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import ReportError
from .facts import Facts


@dataclass(frozen=True)
class Reporting:
    """What a rehearsal reports.

    Attributes:
        quiet: print no summary.
        json: the file for all facts; None for none.
        trace: the file for the timelines, for Perfetto; None for none.
        report: the file for the page that a browser shows; None for none.
        steps: end the program after this many steps; None to let it run.
        step_marker: the function of the script whose calls are steps; None for the calls of
            `torch.optim.Optimizer.step`.
        is_brief: leave out timelines and findings, which take most of the time of a report.
    """

    quiet: bool = False
    json: Path | None = None
    trace: Path | None = None
    report: Path | None = None
    steps: int | None = None
    step_marker: str | None = None
    is_brief: bool = False

    @property
    def has_files(self) -> bool:
        """Whether a file is to be written."""
        return any(file is not None for file in (self.json, self.trace, self.report))

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to watch the program for."""
        return not self.quiet or self.has_files or self.steps is not None

    def write(self, facts: Facts) -> None:
        """Print the summary to standard error and write the files, each of them atomically.

        A program that used no GPU has no summary.

        Raises:
            ReportError: a file cannot be written.
        """
        if not self.quiet and (facts.devices or facts.fault or facts.measurement):
            from .measured.description import describe_measured
            from .summary import describe

            text = describe(facts) if facts.measurement is None else describe_measured(facts)
            sys.stderr.write(f"{text}\n")
        if self.json is not None:
            write_text(self.json, json.dumps(facts.as_json()))
        if self.trace is not None:
            from .trace import trace_events

            events = ",\n".join(map(json.dumps, trace_events(facts)))
            write_text(self.trace, f'{{"traceEvents": [\n{events}\n]}}')
        if self.report is not None:
            from .page.write import write_page

            with _refusing(self.report):
                write_page(facts.as_json(), self.report)


def check_file(path: Path) -> None:
    """Check before the program runs that a report can be written to `path`.

    Raises:
        ReportError: the folder does not exist, the name cannot be that of a file, or the path
            exists and is not a file.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ReportError(f"{path.parent} is not a folder; create it first") from None
    except (OSError, ValueError) as error:
        raise ReportError(f"{str(path)[:80]!r} cannot be the name of a file: {error}") from None
    else:
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "not a file"
            raise ReportError(f"{path} is {kind}; name a file")


def write_text(path: Path, text: str) -> None:
    """Write a file of a report, atomically.

    Raises:
        ReportError: the file cannot be written.
    """
    from ..memory.atomic_file import write_atomically

    with _refusing(path):
        write_atomically(path, text.encode())


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Raise a `ReportError` that names `path` if the block cannot write the file."""
    from ..virtual.installed import write_own_files

    try:
        with write_own_files():
            yield
    except OSError as error:
        raise ReportError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error
