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


def _number(value: float) -> float:
    if math.isnan(value):  # it lies outside no range
        raise typer.BadParameter("nan is no number of seconds")
    return value


def devices(
    json: Annotated[
        bool, typer.Option("--json", help="Print the devices as one JSON object.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the devices again and again, until Ctrl-C.")
    ] = False,
    interval_seconds: Annotated[
        float,
        typer.Option(
            "--interval",
            min=0.1,
            max=_DAY_SECONDS,
            callback=_number,
            help="With --watch: how many seconds pass in between.",
        ),
    ] = 1.0,
) -> None:
    """Show every device: memory, utilization, temperature, and who uses it."""
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
    """One object; with --watch one a line, until the reader has enough."""
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
        if not sys.stdout.isatty():  # nothing can be drawn over: one table below the other
            while True:
                table = StringIO()  # to a pipe that was closed, rich would end the program itself
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
