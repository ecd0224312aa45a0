"""`anyrig fit`: what fits on which GPU, how fast, and at what price."""

from __future__ import annotations

import json as json_module
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from .chosen_device import named_in_errors
from .command_line import read_command
from .group_flags import GroupFlags
from .price_flag import PRICES, read_prices
from .program_argument import MODULE
from .rehearsal_flags import SCRIPT, STEP_MARKER, check_step_marker
from .report_flags import JSON, checked_file
from .stopped import stopped_by_sigterm
from .wide_console import wide_console

if TYPE_CHECKING:
    from ..planning.fit import Fit
    from ..planning.fit_answer import FitAnswer
    from ..planning.fitting import Fitting
    from ..planning.kept_results import KeptResults
    from ..planning.variation import Setting, Variation
    from ..virtual.rig import VirtualRig

FORMAT, VERSION = "anyrig-fit", 1
_OWN_FLAGS = ("--rig", "--vary", "--prices")
_INTERRUPTED = 130
# Each rehearsal takes about a gigabyte of host memory.
_MOST_PROCESSES = 4


def fit(
    context: typer.Context,
    script: SCRIPT,
    rig: Annotated[
        str,
        typer.Option(
            "--rig",
            metavar="RIG,…",
            help="The rigs: RTX-4090,2xRTX-3090,A100-80GB; or all, for one of each known GPU, "
            "sorted by price or speed.",
        ),
    ] = "",
    vary: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads it on Python 3.10 too
        typer.Option(
            "--vary",
            metavar="NAME=A..B",
            help="What varies: a flag of the script, as in --vary --batch-size=1..512; or an "
            "environment variable or an anyrig.fit_value: --vary BATCH=1..512. Further "
            "values double.",
        ),
    ] = None,
    prices: PRICES = None,
    module: MODULE = False,
    step_marker: STEP_MARKER = None,
    remedies: Annotated[
        bool,
        typer.Option(
            "--remedies",
            help="Where not even the smallest value fits, rehearse remedies, and report those with "
            "which it does.",
        ),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Use no results of earlier runs, but keep new ones.")
    ] = False,
    json: JSON = None,
) -> None:
    """Find what fits on which rig: the largest batch, how fast it is, and what it costs.

    Rehearses the unchanged script without data for three steps, with several values and on each
    rig, and prints one table. The words after SCRIPT are its arguments. "certain" means that the
    upper bound of memory is below what the GPUs have; "likely", that the rehearsal ran.

    Results are kept, so that a second question is answered at once. Ctrl-C prints the best so far.
    The exit status is 0 if something fits for certain on at least one rig.
    """
    from ..planning.fingerprint import fingerprint
    from ..planning.fit import Fit
    from ..planning.fit_answer import FitAnswer
    from ..planning.fitted_rig import exit_status, order_rows
    from ..planning.kept_results import KeptResults
    from ..planning.refused_questions import check_given
    from ..planning.rigs import ALL, read_rigs
    from ..virtual.build import build_extension

    _check_order(rig, context.args)
    with named_in_errors("--rig"):
        rigs = read_rigs(rig)
    variation, combinations = _read_variations(vary or [])
    file = checked_file("--json", json)
    check_step_marker(step_marker, GroupFlags())
    known_prices = read_prices(prices)
    program = read_command([script, *context.args], is_module=module)
    processes = min(core_count(), _MOST_PROCESSES)
    build_extension()  # or the first rehearsal would take the time of the build
    results = KeptResults.in_cache(fingerprint(program, os.environ), is_read=not again)
    answers: list[FitAnswer] = []
    for given in combinations:
        question = Fit(program, rigs, variation, known_prices, step_marker, processes, given)
        fitting = _fitting(question, results)
        is_interrupted = _is_interrupted(fitting)
        rows = fitting.rows()
        if remedies and not is_interrupted:
            rows = [question.with_remedies(row) for row in rows]
        if rig.strip().casefold() == ALL:
            rows = order_rows(rows)
        answers.append(FitAnswer(question, rows))
        if len(answers) > 1:
            check_given(*answers[-2:])
        _print_answer(answers[-1])
        if is_interrupted:
            break
    if file is not None:
        _write(file, [script, *context.args], answers)
    if is_interrupted:
        raise typer.Exit(_INTERRUPTED)
    raise typer.Exit(min(exit_status(one.rows) for one in answers))


def _check_order(rig: str, arguments: list[str]) -> None:
    """Refuse a command line without a rig; say where flags stand if they follow the script.

    Raises:
        typer.BadParameter: there is no rig.
    """
    if rig:
        return
    late = [flag for flag in _OWN_FLAGS if any(word.startswith(flag) for word in arguments)]
    if late:
        raise typer.BadParameter(
            f"{late[0]} stands after the script, whose flag it is then; write anyrig fit --rig "
            "RTX-4090,A100-80GB train.py",
            param_hint="--rig",
        )
    raise typer.BadParameter(
        "no rig is given; write --rig RTX-4090,2xRTX-3090,A100-80GB, or --rig all",
        param_hint="--rig",
    )


def _read_variations(texts: list[str]) -> tuple[Variation | None, list[tuple[Setting, ...]]]:
    from ..errors import PlanningError
    from ..planning.variation import read_variations

    try:
        return read_variations(texts)
    except PlanningError as error:
        raise typer.BadParameter(str(error), param_hint="--vary") from None


def core_count() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _fitting(fit: Fit, results: KeptResults) -> Fitting:
    from ..planning.fitting import Fitting
    from ..planning.table import describe_progress

    def note(rig: VirtualRig, value: int | None) -> None:
        progress = describe_progress(fitting.rows())
        sys.stderr.write(f"anyrig: rehearsing on {rig}{fit.describe(value)}{progress}\n")

    fitting = Fitting(fit, results, note)
    return fitting


def _is_interrupted(fitting: Fitting) -> bool:
    """Rehearse, and return whether Ctrl-C ended that."""
    try:
        with stopped_by_sigterm():
            fitting.run()
    except KeyboardInterrupt:
        sys.stderr.write("anyrig: interrupted; this is the best so far\n")
        return True
    return False


def _print_answer(answer: FitAnswer) -> None:
    from ..planning.table import describe_limits, describe_remedies, fit_table

    fit, rows = answer.fit, answer.rows
    if fit.given:
        typer.echo(f"with {' '.join(map(str, fit.given))}:")
    currency = None if fit.prices is None else fit.prices.currency
    wide_console().print(fit_table(rows, fit.variation, currency))
    for row in rows:
        for note in describe_limits(row, fit.variation):
            typer.echo(note)
        if (text := describe_remedies(row, fit.variation)) is not None:
            typer.echo(text)
    if answer.winner is not None:
        typer.echo(answer.winner.describe(fit.variation))


def _write(file: Path, command: list[str], answers: list[FitAnswer]) -> None:
    from dataclasses import asdict

    from ..rehearsal.reporting import write_text

    fit = answers[0].fit
    found = {
        "format": FORMAT,
        "version": VERSION,
        "command": command,
        "variation": None if fit.variation is None else asdict(fit.variation),
        "currency": None if fit.prices is None else fit.prices.currency,
        "answers": [answer.as_json() for answer in answers],
    }
    write_text(file, json_module.dumps(found))
