"""The table of `anyrig fit`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from ..rehearsal.comparison.table import describe_fit, describe_interval
from ..units import format_bytes, format_seconds
from .candidate import Verdict
from .fitted_rig import FittedRig
from .variation import Variation

_UNKNOWN = "-"


def fit_table(
    rows: Sequence[FittedRig], variation: Variation | None, currency: str | None
) -> Table:
    """Return a table with a row for each rig.

    Args:
        rows: the rigs, in the order of the table.
        variation: what varies; None for nothing.
        currency: the currency of the costs; None if there are no prices.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    table.add_column("rig", no_wrap=True)
    if variation is not None:
        table.add_column(variation.name, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("9 of 10 between", justify="right", no_wrap=True)
    table.add_column("samples/s", justify="right", no_wrap=True)
    found = [None if row.best is None else row.best.found for row in rows]
    per_step = all(each is None or each.samples_per_second is None for each in found)
    if currency is not None:
        of = "steps" if per_step else "samples"
        table.add_column(f"{currency} per million {of}", justify="right", no_wrap=True)
    table.add_column("rehearsals", justify="right", no_wrap=True)
    for row, each in zip(rows, found, strict=True):
        seconds = None if each is None else each.step_seconds
        rate = None if each is None else each.samples_per_second
        value = None if row.certain is None else row.certain.value
        cost = None
        if each is not None:
            cost = each.cost_per_million_steps if per_step else each.cost_per_million_samples
        has_price = each is None or each.price_per_hour is not None
        table.add_row(
            str(row.rig),
            *([] if variation is None else [_UNKNOWN if value is None else str(value)]),
            Text(describe_row(row, variation)),
            _UNKNOWN if seconds is None else format_seconds(seconds),
            describe_interval(None if each is None else each.step_interval),
            _UNKNOWN if rate is None else f"{rate:,.4g}",
            *([] if currency is None else [_describe_cost(cost, has_price)]),
            str(row.rehearsals),
        )
    return table


def describe_row(row: FittedRig, variation: Variation | None) -> str:
    """Return whether a program fits on a rig, and how far that is known."""
    best = row.best
    if best is None:
        return "not tried"
    given = ""
    if variation is not None and best.value is not None and best.verdict is not Verdict.CERTAIN:
        given = f" with {variation.describe(best.value)}"
    stopped = "" if row.is_complete else ", stopped"
    if best.verdict is Verdict.CERTAIN:
        likely = "" if row.likely is None else f", likely {row.likely.value}"
        left = format_bytes(best.found.headroom_bytes)
        return f"certain, {left} left{likely}{stopped}"
    if best.verdict is Verdict.LIKELY:
        left = format_bytes(best.found.headroom_bytes)
        short = format_bytes(-(best.spare_bytes or 0))
        return f"likely{given}, {left} left, {short} too little to be certain{stopped}"
    if row.missing_bytes is None:
        return f"{describe_fit(best.found)}{given}{stopped}"
    return f"no, about {format_bytes(row.missing_bytes)} too little{given}{stopped}"


def _describe_cost(cost: float | None, has_price: bool) -> str:
    if cost is not None:
        return f"{cost:,.4g}"
    return _UNKNOWN if has_price else "no price"


def describe_limits(row: FittedRig, variation: Variation | None) -> list[str]:
    """Return what a row does not say of its rig: GPUs without use, and the end of the range."""
    notes, best = [], row.best
    used = 0 if best is None else best.gpus
    if 0 < used < len(row.rig.devices):
        notes.append(
            f"{row.rig}: the program uses {used} of {len(row.rig.devices)} GPUs, and the price is "
            "that of all"
        )
    if variation is not None and row.certain is not None and row.certain.value == variation.last:
        notes.append(
            f"{row.rig}: {variation.last} is the end of the range, and a larger value may fit, too"
        )
    return notes


def describe_progress(rows: Sequence[FittedRig]) -> str:
    """Return the number of finished rigs, as text to append to a line; empty while it is zero."""
    done = sum(row.is_complete for row in rows)
    return f"; {done} of {len(rows)} rigs are done" if done else ""


def describe_remedies(row: FittedRig, variation: Variation | None) -> str | None:
    """Return the remedies with which a program fits on a rig, the fastest first; None for none."""
    remedies, best = row.remedies, row.best
    if remedies is None or best is None:
        return None
    given = ""
    if variation is not None and best.value is not None:
        given = f" with {variation.describe(best.value)}"
    if isinstance(remedies, str):
        return f"{row.rig}{given}: {remedies}"
    enough = sorted(remedies.enough, key=lambda one: one.time_fraction or 1.0)
    if not enough:
        found = [one for one in (remedies.together, *remedies.of_remedies) if one is not None]
        most = f"; the most is:\n{found[0]}" if found else ""
        return f"{row.rig}{given}: no remedy saves enough, nor do several together{most}"
    return "\n".join([f"{row.rig}{given} runs with one of:", *map(str, enough)])
