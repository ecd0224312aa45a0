"""What each block of a step saves and costs if it is recomputed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from .step_record import StepRecord

# The peak of a phase that could not be measured, because the step ran out of memory.
UNREACHABLE_BYTES = 2**62


@dataclass(frozen=True)
class Phase:
    """A part of the step, from one event to the next.

    Attributes:
        owner: the block whose forward or backward pass it is; None outside the blocks.
        saved_bytes: what each block that holds activations would save if it were recomputed.
        kept_bytes: the peak if the owner and all other blocks are kept.
        recomputed_bytes: the peak if the owner is recomputed, and all other blocks are kept.
    """

    owner: int | None
    saved_bytes: Mapping[int, int]
    kept_bytes: int
    recomputed_bytes: int

    def peak_bytes(self, chosen: Collection[int]) -> int:
        """Return the peak if the chosen blocks are recomputed."""
        own = self.recomputed_bytes if self.owner in chosen else self.kept_bytes
        return own - sum(saved for block, saved in self.saved_bytes.items() if block in chosen)


@dataclass(frozen=True)
class Costs:
    """What each block of a step saves and costs if it is recomputed.

    Attributes:
        order: the blocks that hold activations for a backward pass, in the order of first calls.
        seconds: the time of the recomputations, by block.
        saved_bytes: what a block saves while it holds the activations of one call, by block.
        phases: all parts of the step, in order.
        overlapping: whether a block holds the activations of several calls at once.
    """

    order: tuple[int, ...]
    seconds: Mapping[int, float]
    saved_bytes: Mapping[int, int]
    phases: tuple[Phase, ...]
    overlapping: bool

    def peak_bytes(self, chosen: Collection[int]) -> int:
        """Return the peak of the step if the chosen blocks are recomputed."""
        return max(phase.peak_bytes(chosen) for phase in self.phases)


def compute_costs(reference: StepRecord, records: Mapping[frozenset[int], StepRecord]) -> Costs:
    """Compute what blocks save and cost from several records of the same step.

    ::

        bytes │        ╭─╮            all kept
              │    ╭───╯ ╰────╮         │ what block 1 saves
              │ ╭──╯──────────╰──╮      │ what block 0 saves, constant while it holds activations
              │─╯╭───────╮╭──╮╭─╮╰─   all recomputed
              └──────────────────── events

    At an event, two records of a step differ by what is held by the blocks that only one of them
    keeps. So the peak of a phase is the sum of a part that depends on its owner, and of parts that
    each depend on one other block.

    Args:
        reference: the record with all blocks recomputed.
        records: the other records, by the blocks that were kept. A block that no record keeps
            cannot be kept.
    """
    record_of = {block: record for kept, record in records.items() for block in kept}
    calls = []
    for block, enter, leave, backward in _calls_of(reference):
        saved_bytes = _saved(block, enter, leave, reference, record_of)
        late_saved_bytes = max(saved_bytes, _released(block, backward, reference, record_of))
        calls.append(_Call(block, enter, leave, backward, saved_bytes, late_saved_bytes))
    saved: dict[int, int] = {}
    for call in calls:
        saved[call.block] = max(call.saved_bytes, saved.get(call.block, call.saved_bytes))
    phases = [
        phase
        for number in range(-1, len(reference.marks))
        for phase in _phases(number, calls, reference, records)
    ]
    live = [
        Counter(call.block for call in calls if call.is_live(number))
        for number in range(len(reference.marks))
    ]
    return Costs(
        tuple(saved),
        {block: reference.seconds[block] for block in saved},
        saved,
        tuple(phases),
        overlapping=any(count > 1 for counts in live for count in counts.values()),
    )


@dataclass(frozen=True)
class _Call:
    """A call of a block: the numbers of its marks, and what it saves if it is recomputed.

    Attributes:
        late_saved_bytes: what it saves during the backward passes of other blocks.
    """

    block: int
    enter: int
    leave: int
    backward: int
    saved_bytes: int
    late_saved_bytes: int

    def is_live(self, number: int) -> bool:
        """Return whether the call holds activations between a mark and the next one."""
        return self.leave <= number < self.backward


def _calls_of(record: StepRecord) -> Iterator[tuple[int, int, int, int]]:
    """Yield the block and the numbers of the marks of each call that has a backward pass."""
    numbers = {event: number for number, event in enumerate(record.events)}
    for enter, (what, block, call) in enumerate(record.events):
        leave = numbers.get(("leave", block, call))
        backward = numbers.get(("backward", block, call))
        if what == "enter" and leave is not None and backward is not None:
            yield block, enter, leave, backward


def _saved(
    block: int, enter: int, leave: int, reference: StepRecord, record_of: Mapping[int, StepRecord]
) -> int:
    """Return how much more is allocated after a call if its activations are kept.

    The input may be freed between the end of the call and the next event. When autocast ends, it
    frees its copies of parameters, but kept activations hold them longer; see `_released`.
    """
    if block not in record_of:
        return 0
    before, at_end, after = (
        _difference(record_of[block], reference, number) for number in (enter, leave, leave + 1)
    )
    return min(at_end, after) - before


def _released(
    block: int, backward: int, reference: StepRecord, record_of: Mapping[int, StepRecord]
) -> int:
    """Return how much more the backward pass of a call frees if its activations are kept.

    These bytes include autocast's copies of parameters.
    """
    if block not in record_of:
        return 0
    before = _difference(record_of[block], reference, backward)
    if backward + 1 == len(reference.marks):
        return before  # after the last backward pass, no block holds activations
    return before - _difference(record_of[block], reference, backward + 1)


def _difference(record: StepRecord, reference: StepRecord, number: int) -> int:
    return record.marks[number].allocated_bytes - reference.marks[number].allocated_bytes


def _phases(
    number: int,
    calls: list[_Call],
    reference: StepRecord,
    records: Mapping[frozenset[int], StepRecord],
) -> list[Phase]:
    """Return the phase after a mark; -1 for the beginning of the step.

    Autocast ends, and frees its copies, between the forward and the backward passes of the blocks.
    This phase is divided there. The first part cannot have more than the reference's peak and what
    all blocks save in it, and no part more than the peak of the whole.
    """
    live = [call for call in calls if call.is_live(number)]
    early: Counter[int] = Counter()
    late: Counter[int] = Counter()
    for call in live:
        early[call.block] += call.saved_bytes
        late[call.block] += call.late_saved_bytes
    following = [event for event, _, _ in reference.events[number + 1 : number + 2]]
    if number >= 0 and reference.events[number][0] == "backward":
        return [_phase(number, late, reference, records)]
    phase = _phase(number, early, reference, records)
    if following != ["backward"] or phase.owner is not None or early == late:
        return [phase]
    second = _phase(number, late, reference, records)
    whole_bytes = max(
        (
            record.peak_after(number) + sum(late[block] for block in late if block not in kept)
            for kept, record in records.items()
        ),
        default=UNREACHABLE_BYTES,
    )
    return [
        replace(phase, kept_bytes=min(whole_bytes, phase.recomputed_bytes)),
        replace(second, kept_bytes=min(whole_bytes, second.kept_bytes)),
    ]


def _phase(
    number: int,
    saved: Counter[int],
    reference: StepRecord,
    records: Mapping[frozenset[int], StepRecord],
) -> Phase:
    """Return the phase after a mark, given what each block saves in it."""
    owner = reference.owner_after(number)
    recomputed_bytes = reference.peak_after(number) + sum(saved.values())
    peaks = [
        record.peak_after(number) + sum(saved[block] for block in saved if block not in kept)
        for kept, record in records.items()
        if owner is None or owner in kept
    ]
    if owner is None:
        peaks.append(recomputed_bytes)
    return Phase(owner, dict(saved), max(peaks, default=UNREACHABLE_BYTES), recomputed_bytes)
