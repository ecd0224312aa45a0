"""Why a group of ranks failed: which rank, or which machine, and where the others were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from .rank_end import Ending, RankEnd

# The ranks told beside the first; of a thousand that were stopped, no more are of interest.
_MOST_TOLD = 15


@dataclass(frozen=True)
class GroupFailure:
    """Why a group failed; its text says the cause first.

    Attributes:
        troubles: what befell whole machines or launchers, as sentences.
        ends: how each rank ended of whom it is known, the cause first.
        names_hosts: whether there are several machines, so that each rank's is named.
    """

    troubles: tuple[str, ...]
    ends: tuple[RankEnd, ...]
    names_hosts: bool = True

    @property
    def first(self) -> RankEnd | None:
        """The rank that is to blame, or failed first."""
        return self.ends[0] if self.ends else None

    @property
    def cause(self) -> str:
        """What is said first."""
        return self._parts()[0]

    def __str__(self) -> str:
        places = [(end.host, end.folder.rpartition("/")[0]) for end in self.ends if end.folder]
        folders = [
            f"  all output{f' on {host}' if self.names_hosts else ''}: {folder}"
            for host, folder in sorted({*places})
        ]
        return "\n".join([*self._parts(), *folders])

    def _parts(self) -> list[str]:
        told = self.ends[: _MOST_TOLD + 1]
        first, *others = [end.describe(names_host=self.names_hosts) for end in told] or [""]
        if (more := len(self.ends) - 1 - _MOST_TOLD) > 0:
            others.append(f"and {more} more ranks")
        # A rank that did wrong by itself comes before the machine that then went away.
        at_fault = bool(self.ends) and self.ends[0].ending in (Ending.MISSING, Ending.FAILED)
        causes = [first, *self.troubles] if at_fault else [*self.troubles, first]
        return [part for part in [*causes, *others] if part]


def explain_failure(
    ends: Iterable[RankEnd], troubles: Iterable[str] = (), *, names_hosts: bool = True
) -> GroupFailure:
    """Return what the ends of all ranks together tell, the cause first.

    Args:
        ends: how each rank ended, by itself or stopped.
        troubles: what befell whole machines.
        names_hosts: whether the ranks run on several machines.
    """
    ends = list(ends)
    missing = _missing(ends)
    # One that is done is to blame only if somebody still wanted something of it.
    waited_for = not missing and any(
        end.ending in (Ending.TIMED_OUT, Ending.LOST_CONNECTION) for end in ends
    )
    if any(end.ending in (Ending.KILLED, Ending.FAILED) for end in ends):
        waited_for = False
    told = [
        replace(end, ending=Ending.MISSING)
        if end.rank in missing
        else replace(end, ending=Ending.LEFT)
        if waited_for and end.ending is Ending.DONE
        else end
        for end in ends
    ]
    ordered = sorted(told, key=_order)
    others = sorted(ordered[1:], key=lambda end: end.rank)
    return GroupFailure(tuple(troubles), (*ordered[:1], *others), names_hosts)


def _missing(ends: Collection[RankEnd]) -> set[int]:
    """Return the ranks that others waited for until the time was up.

    The exceptions may name them. Else it is those that were found suspended; or that were stopped
    outside any wait; or, if all waited, those that did so elsewhere than most, or than those whose
    time was up.
    """
    late = [end for end in ends if end.ending is Ending.TIMED_OUT]
    # One that came too late finds the others gone, and may say so before it is stopped.
    stopped = [end for end in ends if end.ending in (Ending.STOPPED, Ending.LOST_CONNECTION)]
    if not late:
        return set()
    absent = {rank for end in late for rank in end.absent}
    named = {end.rank for end in stopped if end.rank in absent}
    # Once woken, one may have come to the collective before it could say where it had been.
    suspended = {end.rank for end in stopped if end.suspended}
    elsewhere = suspended or {end.rank for end in stopped if end.waits is False}
    apart = {end.rank for end in stopped} - {
        end.rank for end in stopped if end.place in {other.place for other in late}
    }
    if named or elsewhere or any(end.ending is Ending.DONE for end in ends):
        return named or elsewhere
    return _minority([*late, *stopped]) or apart


def _minority(waited: Collection[RankEnd]) -> set[int]:
    """Return the ranks that waited elsewhere than most did, whatever ended their waits."""
    counts = Counter(end.place for end in waited if end.place is not None)
    most = [place for place, count in counts.items() if count == max(counts.values())]
    if len(most) != 1:
        return set()
    return {end.rank for end in waited if end.place not in (None, *most)}


def _order(end: RankEnd) -> tuple[int, float]:
    """What sorts the cause before its consequences.

    When a rank ended cannot tell: consequences follow within a millisecond. How it ended can. Of
    those that ended alike, who wrote first failed first.
    """
    return (list(Ending).index(end.ending), end.wrote_unix_seconds)
