"""Merge short neighbours on a time line, so that a page stays within its size.

::

    before  ├a┤├b┤├c┤  ├──── d ────┤ ├e┤├f┤
    after   ├── 3 ──┤  ├──── d ────┤ ├─ 2 ┤
"""

from __future__ import annotations

from collections.abc import Iterable

from .lanes import Lane


def merge_short(lane: Lane, shorter_than_ns: int) -> Lane:
    """Return `lane` with neighbours of one kind merged, if each is shorter than the limit.

    An interval that stands for several has their common name, module and line, or none. Gaps
    shorter than the limit are merged too. No result is longer than 50 times the limit, so that
    the shape of a step remains.
    """
    merged = Lane(lane.track)
    rows = zip(
        lane.begin_ns,
        lane.end_ns,
        lane.gap_ns,
        lane.kind,
        lane.name,
        lane.module,
        lane.line,
        lane.bytes,
        lane.flow,
        lane.count,
        strict=True,
    )
    is_open = False  # the last interval of `merged` may grow
    for begin, end, gap, kind, name, module, line, count, flow, members in rows:
        is_short = end - begin < shorter_than_ns
        if (
            is_open
            and is_short
            and merged.kind[-1] == kind
            and begin - merged.end_ns[-1] < shorter_than_ns
            and end - merged.begin_ns[-1] <= 50 * shorter_than_ns
        ):
            merged.gap_ns[-1] += begin - merged.end_ns[-1] + gap
            merged.end_ns[-1] = end
            for column, value in (
                (merged.name, name),
                (merged.module, module),
                (merged.line, line),
                (merged.flow, flow),
            ):
                column[-1] = value if column[-1] == value else -1
            merged.bytes[-1] = _add_known(merged.bytes[-1], count)
            merged.count[-1] += members
            continue
        merged.begin_ns.append(begin)
        merged.end_ns.append(end)
        merged.gap_ns.append(gap)
        merged.kind.append(kind)
        merged.name.append(name)
        merged.module.append(module)
        merged.line.append(line)
        merged.bytes.append(count)
        merged.flow.append(flow)
        merged.count.append(members)
        is_open = is_short
    return merged


def choose_limit_ns(lanes: Iterable[Lane], most: int) -> int:
    """Return a limit for `merge_short` that all but the `most` longest intervals fall below."""
    durations = sorted(
        end - begin for lane in lanes for begin, end in zip(lane.begin_ns, lane.end_ns, strict=True)
    )
    surplus = len(durations) - most
    return durations[min(surplus, len(durations) - 1)] + 1 if surplus > 0 else 1


def _add_known(first: int, second: int) -> int:
    return max(first, 0) + max(second, 0) if max(first, second) >= 0 else -1
