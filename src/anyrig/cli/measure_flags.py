"""The flags of `anyrig run` that measure a program and report it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .flag_errors import refused_as
from .program_error import error_of_group

if TYPE_CHECKING:
    from ..processes.launcher import GroupResult
    from ..rehearsal.measured.options import MeasureOptions
    from ..rehearsal.program import Program

REPORT = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Profile a few steps, and write a page for a browser: timelines, memory, and how busy "
        "the GPUs are.",
    ),
]

TRACE = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Profile a few steps, and write the timelines, for ui.perfetto.dev or "
        "chrome://tracing.",
    ),
]

JSON = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Profile a few steps, and write all facts as one JSON object.",
    ),
]


def measure_options(
    report: Path | None, trace: Path | None, json: Path | None, is_python: bool
) -> MeasureOptions | None:
    """Return how to measure the program; None if nothing is to be written.

    Raises:
        typer.BadParameter: a file cannot be written, or the program is not Python.
    """
    files = {"--report": report, "--trace": trace, "--json": json}
    given = {flag: path for flag, path in files.items() if path is not None}
    if not given:
        return None
    from ..rehearsal.measured.options import MeasureOptions
    from ..rehearsal.reporting import Reporting, check_file

    for flag, path in given.items():
        if not is_python:
            raise typer.BadParameter(
                "it profiles a Python script, and --no-python runs another program; drop one of "
                "them",
                param_hint=flag,
            )
        with refused_as(flag):
            check_file(path)
    # The script may change its folder before the files are written.
    whole = {flag: None if path is None else path.absolute() for flag, path in files.items()}
    reporting = Reporting(False, whole["--json"], whole["--trace"], whole["--report"])
    return MeasureOptions(time.time_ns(), None, reporting)


@contextmanager
def measured_ranks(
    options: MeasureOptions | None, program: Program, ranks: int
) -> Iterator[tuple[dict[str, str], Callable[[GroupResult], None]]]:
    """Measure the ranks that are started within the block, or do nothing if `options` is None.

    Yields the environment variables of the ranks, and a function that reports once they have ended.
    """
    if options is None:
        yield {}, lambda result: None
        return
    from ..rehearsal.measured.measured_facts import write_report
    from ..rehearsal.record_folder import RecordFolder

    reporting = options.reporting
    with RecordFolder.made() as folder:
        yield (
            replace(options, folder=folder.path).variables(),
            lambda result: write_report(
                reporting,
                program,
                folder.read_all(),
                result.exit_code,
                error_of_group(result),
                ranks,
            ),
        )
