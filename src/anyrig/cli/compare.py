"""`anyrig rehearse compare`: rehearse a script on several rigs, and print one table."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from .chosen_device import named_in_errors
from .group_flags import GroupFlags
from .many_ranks import RANK_COUNT, read_ranks
from .price_flag import PRICES, read_prices
from .rehearsal_flags import SCRIPT, STEP_MARKER, RehearsalFlags, check_step_marker
from .report_flags import JSON, checked_file
from .virtual_ranks import plan_ranks
from .watch_flag import read_watched
from .wide_console import wide_console
from .with_flags import with_flags

if TYPE_CHECKING:
    from ..rehearsal.comparison.comparison import Comparison
    from ..virtual.rig import VirtualRig

# Flags of the comparison, which its rehearsals do not get.
_OWN = frozenset({"--rig", "--prices", "--json", "--quiet"})


@with_flags
def compare(
    context: typer.Context,
    *,
    script: SCRIPT,
    rig: Annotated[
        str,
        typer.Option("--rig", metavar="RIG,…", help="The rigs: 4xA100-80GB,8xL4,2x(8xH100-SXM)."),
    ],
    prices: PRICES = None,
    rank_count: RANK_COUNT = None,
    step_marker: STEP_MARKER = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Do not show the output of the script.")
    ] = False,
    json: JSON = None,
    rehearsed: RehearsalFlags,
    flags: GroupFlags,
) -> None:
    """Rehearse a script on several rigs: what fits, how fast it is, and what it costs.

    Prints one table; the output of the script goes to standard error. The words after SCRIPT are
    its arguments. The other flags are those of `anyrig rehearse`, and each rehearsal gets them. The
    exit status is 0 if the script ran to its end on at least one rig.
    """
    from ..rehearsal.comparison.comparison import Comparison
    from ..rehearsal.comparison.rigs import parse_rigs

    with named_in_errors("--rig"):
        rigs = parse_rigs(rig)
    for each in rigs:
        if rank_count is not None:
            read_ranks(rank_count, each, flags)
        if flags.given:
            plan_ranks(each, flags)
    known_prices = read_prices(prices)
    file = checked_file("--json", json)
    check_step_marker(step_marker, flags)
    read_watched(rehearsed.watch)
    rehearsed.program(script, context.args, as_ranks=bool(flags.given))
    words = tuple(_given_words(context))
    command = (script, *context.args)
    comparison = Comparison(words, command, known_prices, shows_output=not quiet)
    _compare_and_exit(comparison, rigs, file)


def _compare_and_exit(
    comparison: Comparison, rigs: Sequence[VirtualRig], file: Path | None
) -> NoReturn:
    """Rehearse on each rig, print the table, and write the JSON object to `file`."""
    from ..rehearsal.comparison.compared_rig import Outcome
    from ..rehearsal.comparison.table import comparison_table
    from ..rehearsal.comparison.told_apart import find_alike
    from ..rehearsal.reporting import write_text
    from ..virtual.build import build_extension

    build_extension()  # or the first rehearsal would print the progress of the build
    rows = []
    try:
        for number, rig in enumerate(rigs, 1):
            sys.stderr.write(f"anyrig: rehearsal {number} of {len(rigs)}: {rig}\n")
            rows.append(comparison.rehearse_on(rig))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    currency = None if comparison.prices is None else comparison.prices.currency
    wide_console().print(comparison_table(rows, currency))
    for alike in find_alike(rows):
        typer.echo(str(alike))
    if file is not None:
        write_text(file, json_module.dumps(comparison.as_json(rows)))
    fits = any(row.outcome is Outcome.FITS for row in rows)
    raise typer.Exit(0 if fits else 1)


def _given_words(context: typer.Context) -> Iterator[str]:
    """Yield the flags on the command line that each rehearsal gets, with their values.

    Flags from environment variables are left out, because the rehearsals inherit the variables.
    """
    for parameter in context.command.params:
        flag = max(parameter.opts, key=len)
        if parameter.param_type_name != "option" or flag in _OWN:
            continue
        source = context.get_parameter_source(parameter.name or "")
        if source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[parameter.name]
        for one in value if isinstance(value, list | tuple) else [value]:
            yield flag if one is True else f"{flag}={one}"
