"""Rehearse each remedy for a program that ran out of memory, and report what it saves."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...errors import RemedyError
from ...programs.program import Program
from ...units import format_span
from ...virtual.rig import VirtualRig
from .savings import Saving, Savings
from .trial import Outcome
from .trials import MEMORY_FACTOR, Trials

# A smaller saving is not reported.
_LEAST_FRACTION = 0.01
# An error with which a trial ends is shown up to here.
_MOST_LETTERS = 100
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
    model or the optimizer step that ran out of memory. Files that it saves go to a folder of the
    rehearsal; its other effects are not undone.

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

    point = trials.run(None, memory_factor=1)
    if not point.out_of_memory:
        why = "it runs to its end" if point.error is None else f"it ends with {point.error}"
        raise RemedyError(
            f"no remedy could be rehearsed: remedies are tried without data, and without data {why}"
        )
    trials.most_calls, trials.most_steps = point.calls, point.steps + 1
    started = time.monotonic()
    before = trials.run(None)
    seconds = time.monotonic() - started
    if before.error is not None:
        raise RemedyError(
            f"no remedy could be rehearsed: with {MEMORY_FACTOR} times the memory, the program "
            f"ends with {before.error}"
        )
    totals = [device.memory_bytes for device in rig.devices if device.node == 0]
    lack = [needed / total for needed, total in zip(before.allocated_bytes, totals, strict=False)]
    index = lack.index(max(lack))
    savings: list[Saving] = []
    left_out: dict[str, str] = {}
    least_bytes = _LEAST_FRACTION * before.allocated_bytes[index]
    for name in _show_progress([*REMEDIES] if names is None else names, seconds):
        remedy = REMEDIES[name]
        try:
            after = trials.run(name)
            if after.error is not None:
                left_out[name] = f"with it, the program ends with {_shorten(after.error)}"
                continue
            if remedy.if_not_applied is not None and after.detail is None:
                left_out[name] = remedy.if_not_applied
                continue
            saving = compare_outcomes(name, before, after, index)
            if saving.saved_bytes < least_bytes:
                left_out[name] = "saves less than 1 %"
                continue
            saving = replace(saving, is_enough=trials.fits(name, after, point.usable_bytes))
        except RemedyError as error:
            left_out[name] = str(error)
            continue
        savings.append(saving)
    savings.sort(key=lambda saving: -saving.saved_bytes)
    return Savings(
        point.calls,
        index,
        before.allocated_bytes[index],
        before.reserved_bytes[index],
        totals[index],
        tuple(savings),
        left_out,
    )


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


def compare_outcomes(name: str, before: Outcome, after: Outcome, index: int) -> Saving:
    """Return what a remedy saves on one GPU, from a trial without it and one with it."""
    from .remedy import REMEDIES

    remedy = REMEDIES[name]
    kind = "reserved_bytes" if remedy.environment else "allocated_bytes"
    needed = getattr(after, kind)[index]
    return Saving(
        name,
        remedy.advice.format(after.detail),
        getattr(before, kind)[index] - needed,
        needed,
        None if remedy.changes_work or not before.seconds else after.seconds / before.seconds,
        bool(remedy.environment),
    )
