"""The table of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from ...units import format_bytes, format_seconds
from ..facts import ClockError
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
    table.add_column("samples/s", justify="right", no_wrap=True)
    per_step = all(row.samples_per_second is None for row in rows)
    if currency is not None:
        of = "steps" if per_step else "samples"
        table.add_column(f"{currency} per million {of}", justify="right", no_wrap=True)
    table.add_column("error of times, median", no_wrap=True)
    for row in rows:
        cost = row.cost_per_million_steps if per_step else row.cost_per_million_samples
        table.add_row(
            row.rig,
            *([_UNKNOWN if row.ranks is None else f"{row.ranks:,}"] if has_ranks else []),
            Text(describe_fit(row)),
            _UNKNOWN if row.step_seconds is None else format_seconds(row.step_seconds),
            _UNKNOWN if row.samples_per_second is None else f"{row.samples_per_second:,.0f}",
            *([] if currency is None else [_describe_cost(row, cost)]),
            Text(describe_clock(row.clock_errors)),
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
    short = error if len(error) <= _MOST_OF_ERROR else f"{error[:_MOST_OF_ERROR]}…"
    return f"failed: {short}"


def _describe_cost(row: ComparedRig, cost: float | None) -> str:
    if cost is not None:
        return f"{cost:,.4g}"
    return "no price" if row.price_per_hour is None else _UNKNOWN


def describe_clock(errors: Iterable[ClockError]) -> str:
    """Return how far the times of a rig's GPUs are known to be off.

    If errors of whole programs are known, they are used, otherwise those of kernels.
    """
    by_gpu: dict[str, dict[str, float]] = {}
    for error in errors:
        known = by_gpu.setdefault(error.gpu, {})
        if error.median_error is not None:
            known[error.family] = error.median_error
    if not by_gpu:
        return "times predict nothing"
    texts = {gpu: _describe_known(known) for gpu, known in by_gpu.items()}
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{gpu}: {text}" for gpu, text in texts.items())


def _describe_known(known: dict[str, float]) -> str:
    if not known:
        return "not measured"
    programs = {
        family.removeprefix("whole "): share
        for family, share in known.items()
        if family.startswith("whole ")
    }
    shares = sorted((programs or known).values())
    span = f"{100 * shares[0]:.0f} %"
    if round(100 * shares[-1]) != round(100 * shares[0]):
        span = f"{100 * shares[0]:.0f} to {100 * shares[-1]:.0f} %"
    return f"{span} ({'programs' if programs else 'kernels'})"
