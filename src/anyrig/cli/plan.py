"""`anyrig plan`: which way of spreading a script's model is the best on a rig."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from .chosen_device import named_in_errors
from .command_line import read_command
from .fit import core_count
from .price_flag import PRICES, read_prices
from .program_argument import MODULE
from .rehearsal_flags import SCRIPT
from .stopped import stopped_by_sigterm
from .verify import split_words
from .wide_console import wide_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planning.arrangement import Arrangement
    from ..planning.kept_results import KeptResults
    from ..planning.launch import Launch
    from ..planning.planning import Planning
    from ..planning.tried import Tried
    from ..rehearsal.comparison.prices import Prices

_Text = Optional[str]  # noqa: UP045 - typer reads it on Python 3.10 too
_INTERRUPTED = 130
# Rehearsals of pipelines over ranks have a process for each GPU.
_MOST_PROCESSES = 2
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)")
_SECONDS_OF = {"s": 1, "min": 60, "h": 3600, "d": 86400}


class By(str, Enum):
    """What to choose by."""

    SPEED = "speed"
    PRICE = "price"
    MEMORY = "memory"


class Precision(str, Enum):
    """In what else to compute."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Form(str, Enum):
    """For which tool to write a file."""

    TORCHRUN = "torchrun"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    SKYPILOT = "skypilot"


def plan(
    context: typer.Context,
    script: SCRIPT,
    rig: Annotated[
        str,
        typer.Option(
            "--rig",
            metavar="RIG,…",
            help="The rig: 8xA100-80GB, RTX-4090+2xRTX-3090, 2x(8xH100-SXM); or several to choose "
            "from, separated by commas.",
        ),
    ] = "",
    by: Annotated[
        By, typer.Option("--by", help="Choose the fastest, the cheapest, or the smallest plan.")
    ] = By.SPEED,
    prices: PRICES = None,
    deadline: Annotated[
        _Text,
        typer.Option(
            "--deadline", metavar="6h", help="Prefer plans that train --samples in this time."
        ),
    ] = None,
    samples: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--samples", min=1, help="How many samples to train, as in 1e7."),
    ] = None,
    tries: Annotated[
        int, typer.Option("--tries", min=1, max=1000, help="The most rehearsals for a rig.")
    ] = 40,
    module: MODULE = False,
    verify: Annotated[
        _Text,
        typer.Option(
            "--verify",
            metavar="WORDS",
            help="Run anyrig verify on the best plan, with these further arguments of the script, "
            'which make it small: "--layers 2 --batch-size 8".',
        ),
    ] = None,
    as_form: Annotated[
        Optional[Form],  # noqa: UP045
        typer.Option("--as", help="Print the best plan as a file for this tool, and no table."),
    ] = None,
    precision: Annotated[
        Optional[Precision],  # noqa: UP045
        typer.Option(
            "--allow-precision",
            help="Try each plan also under autocast in this dtype. It changes the numbers that the "
            "script computes.",
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Use no results of earlier runs, but keep new ones.")
    ] = False,
) -> None:
    """Find the best plan of a script that calls anyrig.spread(model, …) without a plan.

    Rehearses the unchanged script without data, with plans that may be the best by what is known so
    far, and prints the best five: what each loses, and where, and the command that applies it. The
    words after SCRIPT are its arguments.

    Results are kept, so that a second question is answered at once. Ctrl-C prints the best so far.
    """
    from ..planning.arrangements import arrangements_on
    from ..planning.fingerprint import fingerprint
    from ..planning.kept_results import KeptResults
    from ..planning.launch import FORMS, Launch
    from ..planning.plan_search import PlanSearch
    from ..planning.planning import Planning
    from ..planning.ranking import join_plans
    from ..planning.rigs import read_rigs

    if not rig:
        raise typer.BadParameter("no rig is given; write --rig 8xA100-80GB", param_hint="--rig")
    if (deadline is None) != (samples is None):
        raise typer.BadParameter(
            "a deadline is for a number of samples; write --deadline 6h --samples 1e7",
            param_hint="--deadline",
        )
    seconds = None if deadline is None else _read_duration(deadline)
    if by is By.PRICE and prices is None:
        raise typer.BadParameter("it needs --prices prices.toml", param_hint="--by")
    with named_in_errors("--rig"):
        rigs = read_rigs(rig)
    words = None if verify is None else split_words(verify, "--verify")
    found = read_prices(prices)
    program = read_command([script, *context.args], is_module=module)
    plannings = []
    for each in rigs:
        own = None
        for dtype in [None] if precision is None else [None, precision.value]:
            plans = arrangements_on(each, precision=dtype)
            search = PlanSearch(each, plans, by.value, tries)
            processes = min(core_count(), _MOST_PROCESSES)
            plannings.append(Planning(program, search, found, processes, own))
            own = search
    results = KeptResults.in_cache(fingerprint(program, os.environ), is_read=not again)
    plannings, is_interrupted = _run_all(plannings, results)
    rows = join_plans([each.search for each in plannings], seconds, samples)
    if not rows:
        raise typer.Exit(_INTERRUPTED if is_interrupted else 1)
    launch = Launch(program, rows[0].arrangement, rows[0].rig)
    if as_form is not None:
        typer.echo(FORMS[as_form.value](launch), nl=False)
    else:
        _print(rows, plannings, samples, found)
    if is_interrupted:
        raise typer.Exit(_INTERRUPTED)
    raise typer.Exit(0 if words is None else _verify(launch, words))


def _read_duration(text: str) -> float:
    """Return the seconds of a text such as ``6h``.

    Raises:
        typer.BadParameter: it is not a number and a unit.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise typer.BadParameter(
            f"{text[:60]!r} is not a duration; write 90min, 6h or 2d", param_hint="--deadline"
        )
    return float(match[1]) * _SECONDS_OF[match[2]]


def _run_all(plannings: Sequence[Planning], results: KeptResults) -> tuple[list[Planning], bool]:
    """Rehearse for each rig and precision.

    Returns:
        those that have an answer, and whether Ctrl-C ended the search.

    Raises:
        PlanningError: none has an answer. If some have, the errors of the others are printed.
    """
    from ..errors import PlanningError
    from ..virtual.build import build_extension

    build_extension()  # or the first rehearsal would take the time of the build
    answered, errors = [], []
    try:
        with stopped_by_sigterm():
            for planning in plannings:
                planning.recall(results)
                try:
                    planning.run(results, partial(_note, planning))
                    answered.append(planning)
                except PlanningError as error:
                    errors.append(error)
    except KeyboardInterrupt:
        sys.stderr.write("anyrig: interrupted; this is the best so far\n")
        done = len(answered) + len(errors)
        return [*answered, *plannings[done : done + 1]], True
    if not answered:
        raise errors[0]
    sys.stderr.writelines(f"anyrig: {each}\n" for each in errors)
    return answered, False


def _note(planning: Planning, arrangement: Arrangement) -> None:
    from ..units import format_seconds

    search = planning.search
    best = next(iter(search.ranked()), None)
    known = ""
    if best is not None:
        seconds = "" if best.seconds is None else f", {format_seconds(best.seconds)}"
        known = f"; the best so far is {best.arrangement}{seconds}"
    ranks = f" by {arrangement.processes} processes" if arrangement.processes > 1 else ""
    precision = "" if arrangement.precision is None else f" in {arrangement.precision}"
    sys.stderr.write(
        f"anyrig: rehearsing {arrangement}{ranks}{precision} on {search.rig}, "
        f"{search.progress}{known}\n"
    )


def _print(
    rows: Sequence[Tried],
    plannings: Sequence[Planning],
    samples: float | None,
    prices: Prices | None,
) -> None:
    from ..planning.launch import Launch
    from ..planning.plan_table import MOST_SHOWN, describe_search, describe_unused, plan_table

    shown = rows[:MOST_SHOWN]
    currency = None if prices is None else prices.currency
    wide_console().print(plan_table(shown, currency=currency, to_train=samples))
    for line in describe_unused(shown):
        typer.echo(line)
    for planning in plannings:
        for line in describe_search(planning.search):
            typer.echo(line)
    for number, row in enumerate(shown, 1):
        launch = Launch(plannings[0].program, row.arrangement, row.rig)
        typer.echo(f"{number}: {launch.command}")
    best = Launch(plannings[0].program, shown[0].arrangement, shown[0].rig)
    typer.echo(f"or write the best into the script: anyrig.spread(model, {best.code})")


def _verify(launch: Launch, words: Sequence[str]) -> int:
    """Run ``anyrig verify`` with a plan, and return its exit status."""
    sys.stdout.flush()
    command = [sys.executable, "-m", "anyrig", *launch.verify_words(words)]
    environment = launch.environment_from(os.environ)
    return subprocess.run(command, env=environment, check=False).returncode
