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
    from ..planning.fitted_rig import FittedRig
    from ..planning.fitting import Fitting
    from ..planning.variation import Variation
    from ..planning.winner import Winner
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
            "environment variable or an anyrig.fit_value, as in --vary BATCH=1..512.",
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
    from ..planning.fitted_rig import exit_status, order_rows
    from ..planning.fitting import Fitting
    from ..planning.kept_results import KeptResults
    from ..planning.rigs import ALL, read_rigs
    from ..planning.winner import find_winner
    from ..virtual.build import build_extension

    _check_order(rig, context.args)
    with named_in_errors("--rig"):
        rigs = read_rigs(rig)
    variation = _read_variation(vary or [])
    file = checked_file("--json", json)
    check_step_marker(step_marker, GroupFlags())
    known_prices = read_prices(prices)
    program = read_command([script, *context.args], is_module=module)
    build_extension()  # or the first rehearsal would take the time of the build
    processes = min(core_count(), _MOST_PROCESSES)
    question = Fit(program, rigs, variation, known_prices, step_marker, processes)
    results = KeptResults.in_cache(fingerprint(program, os.environ), is_read=not again)
    fitting = Fitting(question, results, lambda each, value: _note(fitting, variation, each, value))
    is_interrupted = _is_interrupted(fitting)
    rows = fitting.rows()
    if remedies and not is_interrupted:
        rows = [question.with_remedies(row) for row in rows]
    if rig.strip().casefold() == ALL:
        rows = order_rows(rows)
    currency = None if known_prices is None else known_prices.currency
    winner = find_winner(rows, currency)
    _print_table(rows, variation, currency, winner)
    if file is not None:
        _write(file, [script, *context.args], variation, currency, rows, winner)
    if is_interrupted:
        raise typer.Exit(_INTERRUPTED)
    raise typer.Exit(exit_status(rows))


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


def _read_variation(texts: list[str]) -> Variation | None:
    from ..errors import PlanningError
    from ..planning.variation import Variation

    if not texts:
        return None
    if len(texts) > 1:
        raise typer.BadParameter(
            f"{len(texts)} values vary: {', '.join(texts)[:80]}; vary one, and give the others "
            "after the script",
            param_hint="--vary",
        )
    try:
        return Variation.parse(texts[0])
    except PlanningError as error:
        raise typer.BadParameter(str(error), param_hint="--vary") from None


def core_count() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_interrupted(fitting: Fitting) -> bool:
    """Rehearse, and return whether Ctrl-C ended that."""
    try:
        with stopped_by_sigterm():
            fitting.run()
    except KeyboardInterrupt:
        sys.stderr.write("anyrig: interrupted; this is the best so far\n")
        return True
    return False


def _note(
    fitting: Fitting, variation: Variation | None, rig: VirtualRig, value: int | None
) -> None:
    from ..planning.table import describe_progress

    given = "" if variation is None or value is None else f" with {variation.describe(value)}"
    sys.stderr.write(f"anyrig: rehearsing on {rig}{given}{describe_progress(fitting.rows())}\n")


def _print_table(
    rows: list[FittedRig], variation: Variation | None, currency: str | None, winner: Winner | None
) -> None:
    from ..planning.table import describe_limits, describe_remedies, fit_table

    wide_console().print(fit_table(rows, variation, currency))
    for row in rows:
        for note in describe_limits(row, variation):
            typer.echo(note)
        if (text := describe_remedies(row, variation)) is not None:
            typer.echo(text)
    if winner is not None:
        typer.echo(winner.describe(variation))


def _write(
    file: Path,
    command: list[str],
    variation: Variation | None,
    currency: str | None,
    rows: list[FittedRig],
    winner: Winner | None,
) -> None:
    from dataclasses import asdict

    from ..rehearsal.reporting import write_text

    found = {
        "format": FORMAT,
        "version": VERSION,
        "command": command,
        "variation": None if variation is None else asdict(variation),
        "currency": currency,
        "rigs": [row.as_json() for row in rows],
        "winner": None if winner is None else winner.as_json(),
    }
    write_text(file, json_module.dumps(found))
