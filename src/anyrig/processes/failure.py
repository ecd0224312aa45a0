"""Why a group of ranks failed: the rank or node that is the cause, and the state of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from .rank_end import Ending, RankEnd

# The number of ranks to report after the first rank.
_MOST_REPORTED = 15

_WAITED = {Ending.TIMED_OUT, Ending.LOST_CONNECTION}
_FAILED = {Ending.KILLED, Ending.FAILED}


@dataclass(frozen=True)
class GroupFailure:
    """The failure of a group. Its text begins with the cause.

    Attributes:
        troubles: failures of nodes or launchers, as sentences.
        ends: how the ranks ended, as far as known, the cause first.
        names_hosts: whether to name each rank's node, because there are several nodes.
    """

    troubles: tuple[str, ...]
    ends: tuple[RankEnd, ...]
    names_hosts: bool = True

    @property
    def first(self) -> RankEnd | None:
        """The rank that caused the failure, or failed first."""
        return self.ends[0] if self.ends else None

    @property
    def cause(self) -> str:
        """The first part of the text."""
        return self._parts()[0]

    def __str__(self) -> str:
        places = [(end.host, end.folder.rpartition("/")[0]) for end in self.ends if end.folder]
        folders = [
            f"  all output{f' on {host}' if self.names_hosts else ''}: {folder}"
            for host, folder in sorted({*places})
        ]
        return "\n".join([*self._parts(), *folders])

    def _parts(self) -> list[str]:
        reported = self.ends[: _MOST_REPORTED + 1]
        # Ranks often fail for the same reason, so only the first rank's error is explained.
        first, *others = [
            end.describe(names_host=self.names_hosts, explains=end is self.first)
            for end in reported
        ] or [""]
        if (more := len(self.ends) - 1 - _MOST_REPORTED) > 0:
            others.append(f"and {more} more ranks")
        # A rank that failed by itself comes before a node that was lost after it.
        at_fault = bool(self.ends) and self.ends[0].ending in (Ending.MISSING, Ending.FAILED)
        causes = [first, *self.troubles] if at_fault else [*self.troubles, first]
        return [part for part in [*causes, *others] if part]


def explain_failure(
    ends: Iterable[RankEnd], troubles: Iterable[str] = (), *, names_hosts: bool = True
) -> GroupFailure:
    """Return why the group failed, given how the ranks ended and the failures of nodes."""
    ends = list(ends)
    missing = _missing_ranks(ends)
    kinds = {end.ending for end in ends}
    # A rank that succeeded is the cause only if another rank still waited for it.
    blames_done = kinds & _WAITED and not kinds & _FAILED and not missing
    for index, end in enumerate(ends):
        if end.rank in missing:
            ends[index] = replace(end, ending=Ending.MISSING)
        elif end.ending is Ending.DONE and blames_done:
            ends[index] = replace(end, ending=Ending.LEFT)
    ordered = sorted(ends, key=_sort_key)
    others = sorted(ordered[1:], key=lambda end: end.rank)
    return GroupFailure(tuple(troubles), (*ordered[:1], *others), names_hosts)


def _missing_ranks(ends: Collection[RankEnd]) -> set[int]:
    """Return the ranks that others waited for until their time limit.

    ::

        the ranks that the exceptions of the waiting ranks name
        else the suspended ranks
        else the ranks that were stopped outside any wait
        else the ranks that waited at a different line from most ranks
        else the ranks that waited at a different line from the ranks that timed out
    """
    late = [end for end in ends if end.ending is Ending.TIMED_OUT]
    # A rank that arrives too late loses its connections, and may fail before it is stopped.
    stopped = [end for end in ends if end.ending in (Ending.STOPPED, Ending.LOST_CONNECTION)]
    if not late:
        return set()
    absent = {rank for end in late for rank in end.absent}
    named = {end.rank for end in stopped if end.rank in absent}
    # A suspended rank that is resumed may reach the collective before it writes its stack.
    suspended = {end.rank for end in stopped if end.suspended}
    elsewhere = suspended or {end.rank for end in stopped if end.waits is False}
    apart = {end.rank for end in stopped} - {
        end.rank for end in stopped if end.place in {other.place for other in late}
    }
    if named or elsewhere or any(end.ending is Ending.DONE for end in ends):
        return named or elsewhere
    return _minority([*late, *stopped]) or apart


def _minority(waited: Collection[RankEnd]) -> set[int]:
    """Return the ranks that waited at a different line from most ranks."""
    counts = Counter(end.place for end in waited if end.place is not None)
    most = [place for place, count in counts.items() if count == max(counts.values())]
    if len(most) != 1:
        return set()
    return {end.rank for end in waited if end.place not in (None, *most)}


def _sort_key(end: RankEnd) -> tuple[int, float]:
    """Return a key that sorts the cause before its consequences.

    Consequences follow within a millisecond, so the kind of ending decides. Among ranks with the
    same ending, the first that wrote to standard error comes first.
    """
    return (list(Ending).index(end.ending), end.wrote_unix_seconds)
