"""The table of `anyrig plan`, and what it says of the plans."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from ..units import format_bytes, format_seconds
from .candidate import Verdict
from .plan_search import PlanSearch
from .tried import WAYS, Tried

_UNKNOWN = "-"
MOST_SHOWN = 5
_MOST_OF_AN_ERROR = 1000  # its end says what to do


def plan_table(
    rows: Sequence[Tried], *, currency: str | None = None, to_train: float | None = None
) -> Table:
    """Return a table with a row for each plan.

    Args:
        rows: the plans that fit, the best first.
        currency: the currency of the costs; None if there are no prices.
        to_train: of how many samples to show the time; None for none.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    has_rigs = len({str(one.rig) for one in rows}) > 1
    names = ["", *(["rig"] if has_rigs else []), "plan", "processes", "fits", "step", "samples/s"]
    names += [f"{currency} per million samples"] if currency is not None else []
    names += [f"{to_train:,.4g} samples"] if to_train is not None else []
    for name in [*names, "loses", "of that"]:
        is_text = name in ("rig", "plan", "fits", "of that")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    for number, one in enumerate(rows, 1):
        rate = one.candidate.found.samples_per_second
        cost = one.candidate.found.cost_per_million_samples
        plan = one.arrangement.arguments.removeprefix("plan=anyrig.")
        cells = [str(number), *([str(one.rig)] if has_rigs else []), plan]
        cells += [str(one.arrangement.processes), describe_room(one), _seconds(one.seconds)]
        cells += [_UNKNOWN if rate is None else f"{rate:,.4g}"]
        cells += [_UNKNOWN if cost is None else f"{cost:,.4g}"] if currency is not None else []
        if to_train is not None:
            cells += [describe_duration(to_train / rate if rate else None)]
        table.add_row(*map(Text, [*cells, *describe_loss(rows[0], one)]))
    return table


def describe_room(tried: Tried) -> str:
    """Return whether a plan fits, and how much memory it leaves."""
    return f"{tried.verdict.value}, {format_bytes(tried.candidate.found.headroom_bytes)} left"


def describe_loss(best: Tried, other: Tried) -> tuple[str, str]:
    """Return what a plan loses against the best, and what its GPUs do in most of that time."""
    one, two = best.seconds, other.seconds_for(best.samples)
    if other is best or not one or not two or not other.seconds:
        return _UNKNOWN, _UNKNOWN
    scale = two / other.seconds
    more = {way: scale * other.seconds_by_way[way] - best.seconds_by_way[way] for way in WAYS}
    way = max(more, key=lambda each: more[each])
    where = f"{format_seconds(more[way])} {WAYS[way]}" if more[way] > 0 else _UNKNOWN
    return f"{100 * (two / one - 1):+.1f} %", where


def describe_unused(rows: Sequence[Tried]) -> list[str]:
    """Return a line for each row of `plan_table` whose plan leaves out GPUs of the rig."""
    lines = []
    for number, one in enumerate(rows, 1):
        names = [f"cuda:{index} ({one.rig.devices[index].key})" for index in one.unused]
        if names:
            lines.append(
                f"{number} leaves out {', '.join(names)}, {len(names)} of {len(one.rig.devices)} "
                "GPUs; anyrig.explain(model) says why"
            )
    return lines


def describe_search(search: PlanSearch) -> list[str]:
    """Return how many plans were rehearsed, and why the others were not."""
    tried = search.tried
    out = sum(one.verdict is Verdict.NO for one in tried)
    failed = [one for one in tried if one.verdict is Verdict.FAILED]
    names = dict.fromkeys(one.precision for one in search.arrangements if one.precision)
    precision = "".join(f" in {name}" for name in names)
    lines = [
        f"{search.rig}{precision}: rehearsed {len(tried)} of {len(search.arrangements)} plans; "
        f"{out} ran out of memory, and {search.impossible} others take more memory than there is"
    ]
    if failed:
        more = f", and so would {search.ruled_out} others" if search.ruled_out else ""
        lines.append(f"{len(failed)} failed{more}:")
    lines += map(_with_error, failed[:3])
    unknown = [one for one in tried if one.verdict is Verdict.UNKNOWN]
    if unknown:
        lines.append(f"{len(unknown)} could not be judged; ask again with more memory free:")
    return [*lines, *map(_with_error, unknown[:3])]


def _with_error(one: Tried) -> str:
    error = one.candidate.found.error or "no error is known"
    processes = one.arrangement.processes
    ranks = f" by {processes} processes" if processes > 1 else ""
    return f"  {one.arrangement}{ranks}: {error[:_MOST_OF_AN_ERROR]}"


def describe_duration(seconds: float | None) -> str:
    """Return how long something takes, in hours above one."""
    if seconds is None:
        return _UNKNOWN
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else format_seconds(seconds)


def _seconds(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else format_seconds(seconds)
