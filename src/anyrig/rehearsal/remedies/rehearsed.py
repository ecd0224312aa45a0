"""Rehearse each remedy for a program that ran out of memory, and report what it saves."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import RemedyError
from ...programs.program import Program
from ...units import format_span
from ...virtual.rig import VirtualRig
from ..more_memory import MEMORY_FACTOR, last_step
from .savings import Saving, Savings
from .trial import Outcome
from .trials import Trials

# A smaller saving is not reported.
_LEAST_FRACTION = 0.01
# An error with which a trial ends is shown up to here.
_MOST_LETTERS = 100
# Up to the end of the second step: of a model and a loss, for a few micro-batches.
_MOST_CALLS = 32
# Of a remedy: with more memory, and then perhaps with the memory that the rig has.
_MOST_TRIALS = 2


def rehearse_remedies(
    program: Program,
    rig: VirtualRig,
    environment: Mapping[str, str],
    names: Sequence[str] | None = None,
) -> Savings:
    """Run a program that runs out of memory once with each remedy, and return what each saves.

    The program runs in processes of its own, without data, and up to the end of the call of the
    model or the optimizer step that ran out of memory; if that is in the first step, to the end of
    the second. Files that it saves go to a folder of the rehearsal; its other effects are not
    undone.

    Args:
        program: the program.
        rig: the GPUs on which it ran out of memory.
        environment: the environment variables with which it started.
        names: the keys in `REMEDIES` of the remedies to rehearse; None for all.

    Raises:
        RemedyError: without data, the program does not run out of memory, or it fails for another
            reason.
    """
    with Trials(program, rig, environment) as trials:
        return _rehearse(trials, rig, names)


def _rehearse(trials: Trials, rig: VirtualRig, names: Sequence[str] | None) -> Savings:
    from .remedy import REMEDIES

    point = trials.run(memory_factor=1)
    if not point.out_of_memory:
        why = "it runs to its end" if point.error is None else f"it ends with {point.error}"
        raise RemedyError(
            f"no remedy could be rehearsed: remedies are tried without data, and without data {why}"
        )
    before, seconds = _run_unchanged(trials, point)
    if before.error is not None:
        raise RemedyError(
            f"no remedy could be rehearsed: with {MEMORY_FACTOR} times the memory, the program "
            f"ends with {before.error}"
        )
    totals = [device.memory_bytes for device in rig.devices if device.node == 0]
    lack = [needed / total for needed, total in zip(before.allocated_bytes, totals, strict=False)]
    comparison = _Comparison(trials, before, point.usable_bytes, lack.index(max(lack)))
    savings: list[Saving] = []
    small: list[Saving] = []
    left_out: dict[str, str] = {}
    for name in _show_progress([*REMEDIES] if names is None else names, seconds):
        try:
            saving = comparison.saving_of([name])
        except RemedyError as error:
            left_out[name] = str(error)
            continue
        if saving.saved_bytes >= comparison.least_bytes:
            savings.append(saving)
        else:
            small.append(saving)
            left_out[name] = "saves less than 1 % alone"
    savings.sort(key=lambda saving: -saving.saved_bytes)
    together = None
    if not any(one.is_enough for one in savings):
        together = _join(comparison, savings, small)
    for name in () if together is None else together.remedies:
        left_out.pop(name, None)
    index = comparison.index
    return Savings(
        point.calls,
        index,
        before.allocated_bytes[index],
        before.reserved_bytes[index],
        totals[index],
        tuple(savings),
        left_out,
        together,
    )


def _run_unchanged(trials: Trials, point: Outcome) -> tuple[Outcome, float]:
    """Run the program with more memory; return the outcome, and how long that took.

    Set the point up to which this and the other trials run: the end of the call or of the step that
    failed. What fails in the first step runs to the end of the second; see `last_step`.
    """
    is_first = point.steps == 0
    trials.most_steps = last_step(point.steps)
    trials.most_calls = point.calls + (_MOST_CALLS if is_first else 0)
    started = time.monotonic()
    before = trials.run()
    if is_first and (before.steps == 0 or before.error is not None):  # it has no such second step
        trials.most_calls, trials.most_steps = point.calls, 1
        started = time.monotonic()
        before = trials.run()
    return before, time.monotonic() - started


@dataclass(frozen=True)
class _Comparison:
    """Compares trials with remedies to the one without.

    Attributes:
        trials: runs the program.
        before: the outcome of the unchanged program on GPUs with more memory.
        usable_bytes: what each GPU of the rig has for tensors.
        index: the GPU with the least memory for what the program needs.
    """

    trials: Trials
    before: Outcome
    usable_bytes: tuple[int, ...]
    index: int

    @property
    def least_bytes(self) -> float:
        """A smaller saving is not reported."""
        return _LEAST_FRACTION * self.before.allocated_bytes[self.index]

    def saving_of(self, names: Sequence[str]) -> Saving:
        """Run the program with all of these remedies, and return what they save together.

        Raises:
            RemedyError: the program fails with them, or one of them cannot be applied.
        """
        from .remedy import REMEDIES

        after = self.trials.run(*names)
        if after.error is not None:
            raise RemedyError(f"with it, the program ends with {_shorten(after.error)}")
        for name in names:
            why_not = REMEDIES[name].if_not_applied
            if why_not is not None and name not in after.details:
                raise RemedyError(why_not)
        saving = compare_outcomes(names, self.before, after, self.index)
        return replace(saving, is_enough=self.trials.fits(names, after, self.usable_bytes))


def _join(
    comparison: _Comparison, savings: Sequence[Saving], small: Sequence[Saving]
) -> Saving | None:
    """Add remedies one by one until together they are enough, and return what they save.

    Offloading comes last, because it takes the most time. A remedy that adds less than 1 % to the
    others is left out. If all of them together are not enough, return what all save. Return None if
    there are fewer than two, or if the program fails with all.

    Args:
        comparison: runs the program.
        savings: of the remedies that save at least 1 % alone, the largest first.
        small: of the other remedies. Once blocks are recomputed, the optimizer's step may need the
            most memory, so that one of these helps.
    """
    ordered = sorted([*savings, *small], key=lambda one: one.remedies == ("offload",))
    if not savings or len(ordered) < 2:
        return None
    names = [name for each in ordered for name in each.remedies]
    sys.stderr.write("Rehearsing all of these remedies together\n")
    try:
        whole = comparison.saving_of(names)
    except RemedyError:
        return None
    if not whole.is_enough:
        return _without_small(comparison, whole, savings)
    joined = ordered[0]
    for name in names[1:]:
        tried = [*joined.remedies, name]
        if len(tried) == len(names):
            break
        sys.stderr.write(f"Rehearsing together: {', '.join(tried)}\n")
        try:
            saving = comparison.saving_of(tried)
        except RemedyError:
            continue
        if saving.is_enough:
            return saving
        if saving.saved_bytes - joined.saved_bytes >= comparison.least_bytes:
            joined = saving
    return whole


def _without_small(
    comparison: _Comparison, whole: Saving, savings: Sequence[Saving]
) -> Saving | None:
    """Leave out of `whole` the remedies that are not in `savings`, if they add less than 1 %.

    Return None if a single remedy is left.
    """
    kept = {name for each in savings for name in each.remedies}
    names = [name for name in whole.remedies if name in kept]
    if len(names) == len(whole.remedies):
        return whole
    large = savings[0] if len(names) == 1 else comparison.saving_of(names)
    if whole.saved_bytes - large.saved_bytes >= comparison.least_bytes:
        return whole
    return large if len(names) > 1 else None


def _shorten(error: str) -> str:
    lines = error.splitlines()
    short = lines[0][:_MOST_LETTERS]
    return short if short == error else f"{short}…"


def _show_progress(names: Sequence[str], trial_seconds: float) -> Iterator[str]:
    """Yield names, and show on standard error which is rehearsed, and how long all may take."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    low, high = len(names) * trial_seconds, _MOST_TRIALS * len(names) * trial_seconds
    console.print(f"Rehearsing the remedies takes about {format_span(low, high, 'to')}.")
    if console.is_terminal:
        yield from track(names, "Rehearsing remedies", console=console, transient=True)
        return
    for number, name in enumerate(names, 1):
        sys.stderr.write(f"Rehearsing remedy {number} of {len(names)}: {name}\n")
        yield name


def compare_outcomes(names: Sequence[str], before: Outcome, after: Outcome, index: int) -> Saving:
    """Return what remedies save on one GPU, from a trial without them and one with them.

    If all of them only set options of the allocator, the saving is of the bytes that it reserves.
    """
    from .remedy import REMEDIES

    remedies = [REMEDIES[name] for name in names]
    is_of_reserved = all(remedy.environment for remedy in remedies)
    kind = "reserved_bytes" if is_of_reserved else "allocated_bytes"
    needed = getattr(after, kind)[index]
    is_same_work = before.seconds and not any(remedy.changes_work for remedy in remedies)
    return Saving(
        tuple(names),
        tuple(
            remedy.advice.format(after.details.get(name))
            for name, remedy in zip(names, remedies, strict=True)
        ),
        getattr(before, kind)[index] - needed,
        needed,
        after.seconds / before.seconds if is_same_work else None,
        is_of_reserved,
    )
