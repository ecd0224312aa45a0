"""`anyrig rehearse --compare`: rehearse a script on several rigs, and print one table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from .chosen_device import named_in_errors

if TYPE_CHECKING:
    from ..rehearsal.comparison.comparison import Comparison
    from ..rehearsal.comparison.prices import Prices
    from ..virtual.rig import VirtualRig

COMPARE, PRICES = "--compare", "--prices"
# The flags of one rehearsal that mean something else here.
_OWN = frozenset({COMPARE, PRICES, "--rig", "--json", "--quiet"})
_OF_ONE_RIG = ("--trace", "--report", "--remedies", "--fail")

# The width of the table where the output is not a terminal, so that no row is wrapped.
_WIDEST_COLUMNS = 400


def read_rigs(context: typer.Context, text: str) -> tuple[VirtualRig, ...]:
    """Return the rigs of ``--compare``, after checking the flags that it excludes.

    Raises:
        typer.BadParameter: a given flag is only for a rehearsal on one rig.
        DeviceTextError: `text` does not name rigs.
    """
    from ..rehearsal.comparison.rigs import parse_rigs

    given = dict(_given_flags(context))
    if "--rig" in given:
        raise typer.BadParameter(
            f"it names the rigs, and --rig {given['--rig']} names another; drop one of them",
            param_hint=COMPARE,
        )
    for flag in _OF_ONE_RIG:
        if flag in given:
            raise typer.BadParameter(
                f"it is for a rehearsal on one rig; drop it, or {COMPARE}", param_hint=flag
            )
    with named_in_errors(COMPARE):
        return parse_rigs(text)


def plan_comparison(
    context: typer.Context,
    rigs: tuple[VirtualRig, ...],
    prices: Prices | None,
    command: tuple[str, ...],
    *,
    quiet: bool,
) -> Comparison:
    """Return the comparison: each rehearsal gets the other flags of this command."""
    from ..rehearsal.comparison.comparison import Comparison

    flags = [
        flag if value is True else f"{flag}={value}"
        for flag, value in _given_flags(context)
        if flag not in _OWN
    ]
    return Comparison(rigs, tuple(flags), command, prices, shows_output=not quiet)


def compare_and_exit(comparison: Comparison, file: Path | None) -> NoReturn:
    """Rehearse on each rig, print the table, and write the JSON object to `file`.

    The exit status is 0 if the script ran to its end on at least one rig.
    """
    from rich.console import Console

    from ..rehearsal.comparison.compared_rig import Outcome
    from ..rehearsal.comparison.table import comparison_table
    from ..rehearsal.reporting import write_text
    from ..virtual.build import build_extension

    build_extension()  # or the first rehearsal would print the progress of the build
    rows = []
    try:
        sys.stderr.write(f"anyrig: rehearsal 1 of {len(comparison.rigs)}: {comparison.rigs[0]}\n")
        for number, row in enumerate(comparison.rehearse(), 1):
            rows.append(row)
            if number < len(comparison.rigs):
                rig = comparison.rigs[number]
                sys.stderr.write(
                    f"anyrig: rehearsal {number + 1} of {len(comparison.rigs)}: {rig}\n"
                )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDEST_COLUMNS)
    currency = None if comparison.prices is None else comparison.prices.currency
    console.print(comparison_table(rows, currency))
    if file is not None:
        write_text(file, json.dumps(comparison.as_json(rows)))
    fits = any(row.outcome is Outcome.FITS for row in rows)
    raise typer.Exit(0 if fits else 1)


def _given_flags(context: typer.Context) -> list[tuple[str, object]]:
    """Return the flags on the command line and their values.

    Flags from environment variables are left out, because the rehearsals inherit the variables.
    """
    return [
        (max(parameter.opts, key=len), context.params[parameter.name])
        for parameter in context.command.params
        if parameter.param_type_name == "option"
        and parameter.name in context.params
        and _is_on_command_line(context, parameter.name)
    ]


def _is_on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
