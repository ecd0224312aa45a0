"""The table of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from ...units import format_bytes, format_rate, format_seconds, format_span
from ..facts import StepInterval
from .compared_rig import ComparedRig, Outcome

_UNKNOWN = "-"
_MOST_OF_ERROR = 100


def comparison_table(rows: Sequence[ComparedRig], currency: str | None) -> Table:
    """Return a table with a row for each rig.

    Args:
        rows: the rigs, in the user's order.
        currency: the currency of the costs; None if there are no prices.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    table.add_column("rig", no_wrap=True)
    has_ranks = any(row.ranks is not None for row in rows)
    if has_ranks:
        table.add_column("ranks", justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("9 of 10 between", justify="right", no_wrap=True)
    table.add_column("samples/s", justify="right", no_wrap=True)
    per_step = all(row.samples_per_second is None for row in rows)
    if currency is not None:
        of = "steps" if per_step else "samples"
        table.add_column(f"{currency} per million {of}", justify="right", no_wrap=True)
    for row in rows:
        cost = row.cost_per_million_steps if per_step else row.cost_per_million_samples
        table.add_row(
            row.rig,
            *([_UNKNOWN if row.ranks is None else f"{row.ranks:,}"] if has_ranks else []),
            Text(describe_fit(row)),
            _UNKNOWN if row.step_seconds is None else format_seconds(row.step_seconds),
            describe_interval(row.step_interval),
            _UNKNOWN if row.samples_per_second is None else format_rate(row.samples_per_second),
            *([] if currency is None else [_describe_cost(row, cost)]),
        )
    return table


def describe_fit(row: ComparedRig) -> str:
    """Return whether a program fits on a rig and by how much, or why it failed."""
    if row.outcome is Outcome.FITS:
        if row.headroom_bytes is None:
            return "no GPU used"
        return f"yes, {format_bytes(row.headroom_bytes)} left"
    if row.outcome is Outcome.OUT_OF_MEMORY:
        if row.missing_bytes is None:
            return "no, out of memory"
        return f"no, about {format_bytes(row.missing_bytes)} too little"
    error = row.error or ""
    if row.outcome is Outcome.KILLED:
        return f"not known: {error}"
    short = error if len(error) <= _MOST_OF_ERROR else f"{error[:_MOST_OF_ERROR]}…"
    return f"failed: {short}"


def _describe_cost(row: ComparedRig, cost: float | None) -> str:
    if cost is not None:
        return f"{cost:,.4g}"
    return "no price" if row.price_per_hour is None else _UNKNOWN


def describe_interval(interval: StepInterval | None) -> str:
    """Return the interval of a step on real GPUs, or that it is not known."""
    if interval is None:
        return _UNKNOWN
    if interval.low_seconds is None or interval.high_seconds is None:
        return "not known"
    return format_span(interval.low_seconds, interval.high_seconds, "to")
