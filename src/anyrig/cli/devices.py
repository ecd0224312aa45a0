"""`anyrig devices`: list the devices, their free memory and their processes."""

from __future__ import annotations

import math
import sys
import time
from io import StringIO
from typing import Annotated

import typer

from ..devices.reading import Reading

_DAY_SECONDS = 86400.0


def _refuse_nan(value: float) -> float:
    if math.isnan(value):  # typer's min and max accept NaN
        raise typer.BadParameter("nan is not a number of seconds")
    return value


def devices(
    json: Annotated[
        bool, typer.Option("--json", help="Print the devices as one JSON object.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh the output until Ctrl-C.")
    ] = False,
    interval_seconds: Annotated[
        float,
        typer.Option(
            "--interval",
            min=0.1,
            max=_DAY_SECONDS,
            callback=_refuse_nan,
            help="The seconds between two refreshes of --watch.",
        ),
    ] = 1.0,
) -> None:
    """Show every device: memory, utilization, temperature, and the processes that use it."""
    if json:
        _print_json(watch, interval_seconds)
    elif watch:
        _watch(interval_seconds)
    else:
        from .device_table import show_utilization

        show_utilization()


def _readings() -> tuple[Reading, ...]:
    from ..devices.activity import read_all
    from ..devices.inventory import survey

    return read_all(survey())


def _print_json(watch: bool, interval_seconds: float) -> None:
    """Print one JSON object; with --watch, one per line until the reader closes the pipe."""
    import json

    from .device_facts import device_facts

    try:
        while True:
            facts = {"devices": [device_facts(reading) for reading in _readings()]}
            typer.echo(json.dumps(facts, indent=None if watch else 2))
            if not watch:
                return
            time.sleep(interval_seconds)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        _close_output()


def _close_output() -> None:
    """Keep Python from flushing at exit to a reader that has closed the pipe."""
    sys.stdout = None


def _watch(interval_seconds: float) -> None:
    from rich.live import Live

    from .device_table import device_table, show_utilization

    try:
        if not sys.stdout.isatty():  # cannot be redrawn: append one table after another
            while True:
                table = StringIO()  # on a closed pipe, rich would exit instead of raising
                show_utilization(file=table)
                typer.echo(table.getvalue())
                time.sleep(interval_seconds)
        with Live(device_table(_readings()), auto_refresh=False) as live:
            while True:
                time.sleep(interval_seconds)
                live.update(device_table(_readings()), refresh=True)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        _close_output()
