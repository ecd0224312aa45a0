"""The flags that name the files of a report, and the report on the ranks of `anyrig run`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from .flag_errors import refused_as
from .group_end import error_of_group

if TYPE_CHECKING:
    from ..processes.launcher import GroupResult
    from ..programs.program import Program
    from ..programs.watcher import Order
    from ..rehearsal.measured.options import MeasureOptions
    from ..rehearsal.reporting import Reporting

_File = Optional[Path]  # noqa: UP045 - typer reads it on Python 3.10 too

JSON = Annotated[
    _File,
    typer.Option("--json", metavar="FILE", help="Write what was found as one JSON object."),
]


@dataclass(frozen=True)
class ReportFlags:
    """The files to write at the end."""

    report: Annotated[
        _File,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Write a page for a browser: timelines, memory, and where each step's time goes.",
        ),
    ] = None
    trace: Annotated[
        _File,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write the timelines, for ui.perfetto.dev or chrome://tracing.",
        ),
    ] = None
    json: JSON = None

    def reporting(
        self, *, quiet: bool = False, steps: int | None = None, step_marker: str | None = None
    ) -> Reporting:
        """Return what to report, with absolute paths, since the script may change its folder.

        Raises:
            typer.BadParameter: a file cannot be written.
        """
        from ..rehearsal.reporting import Reporting

        return Reporting(
            quiet,
            checked_file("--json", self.json),
            checked_file("--trace", self.trace),
            checked_file("--report", self.report),
            steps,
            step_marker,
        )


def checked_file(flag: str, path: Path | None) -> Path | None:
    """Return the absolute path of a file to write, if there is one.

    Raises:
        typer.BadParameter: the file cannot be written; the message names `flag`.
    """
    from ..rehearsal.reporting import check_file

    if path is None:
        return None
    with refused_as(flag):
        check_file(path)
    return path.absolute()


def measure_options(files: ReportFlags, *, is_watched: bool) -> MeasureOptions | None:
    """Return how to measure the program of `anyrig run`; None not to.

    Args:
        files: the files to write. Each of them needs measurements.
        is_watched: whether to print a summary even without files.

    Raises:
        typer.BadParameter: a file cannot be written.
    """
    if not is_watched and files == ReportFlags():
        return None
    from ..rehearsal.measured.options import MeasureOptions

    return MeasureOptions(time.time_ns(), None, files.reporting())


@contextmanager
def measured_ranks(
    options: MeasureOptions | None, program: Program, ranks: int
) -> Iterator[tuple[Order | None, Callable[[GroupResult], None]]]:
    """Measure the ranks that are started within the block, or do nothing if `options` is None.

    Yields the order for each rank, and a function that reports once they have ended.
    """
    if options is None:
        yield None, lambda result: None
        return
    from ..rehearsal.measured.measured_facts import write_report
    from ..rehearsal.record_folder import RecordFolder

    reporting = options.reporting
    with RecordFolder.made() as folder:
        yield (
            replace(options, folder=folder.path).order,
            lambda result: write_report(
                reporting,
                program,
                folder.read_all(),
                result.exit_code,
                error_of_group(result),
                ranks,
            ),
        )
