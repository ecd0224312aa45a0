"""Rehearse each remedy for a program that ran out of memory, and report what it saves."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ...errors import RemedyError
from ...units import format_bytes
from ...virtual.rig import VirtualRig
from ..program import Program
from . import trial
from .trial import Order, Outcome

# Enough for what a program needs that has run out of memory early in a step.
_MEMORY_FACTOR = 16
# A smaller saving is not reported.
_LEAST_FRACTION = 0.01
# A trial may take this many times as long as the first one, and at least so many seconds.
_MOST_TIMES, _LEAST_SECONDS = 10, 120


@dataclass(frozen=True)
class Saving:
    """What a remedy saves, measured without data on a GPU with more memory.

    Attributes:
        remedy: the key of the remedy in `REMEDIES`.
        advice: how to change the program by hand, in one line.
        saved_bytes: by how much the peak of the bytes becomes smaller.
        needed_bytes: the peak with the remedy.
        time_fraction: the time with the remedy as a fraction of the time without it, on the virtual
            clock; None if the remedy computes less with each call, or nothing was computed.
    """

    remedy: str
    advice: str
    saved_bytes: int
    needed_bytes: int
    time_fraction: float | None

    def __str__(self) -> str:
        """Return the saving in one line."""
        time = (
            "" if self.time_fraction is None else f", time {100 * (self.time_fraction - 1):+.0f} %"
        )
        return f"  saves {format_bytes(self.saved_bytes)}{time}: {self.remedy}: {self.advice}"


@dataclass(frozen=True)
class Savings:
    """What each remedy saves, largest saving first.

    Attributes:
        calls: the calls of the model up to the error; the rehearsals end with the last of them.
        device: the index of the GPU with the least memory for what the program needs.
        needed_bytes: the peak of the allocated bytes of the unchanged program, up to the end of the
            call or optimizer step that ran out of memory.
        total_bytes: the memory of the GPU.
        of_remedies: the remedies that save at least 1 %.
    """

    calls: int
    device: int
    needed_bytes: int
    total_bytes: int
    of_remedies: tuple[Saving, ...]

    def __str__(self) -> str:
        """Return a text with a line for each remedy."""
        needed, total = format_bytes(self.needed_bytes), format_bytes(self.total_bytes)
        head = f"cuda:{self.device} has {total}, and the step needs {needed}"
        if not self.of_remedies:
            return f"{head}. No remedy that was rehearsed saves 1 % of it."
        return "\n".join([f"{head}. Rehearsed remedies:", *map(str, self.of_remedies)])


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
        RemedyError: without data the program does not run out of memory, or fails otherwise.
    """
    from rich.console import Console
    from rich.progress import track

    from .remedy import REMEDIES

    trials = _Trials(program, rig, environment)
    point = trials.run(None, memory_factor=1)
    if not point.out_of_memory:
        why = "it runs to its end" if point.error is None else f"it ends with {point.error}"
        raise RemedyError(
            f"no remedy could be rehearsed: remedies are tried without data, and without data {why}"
        )
    trials.most_calls, trials.most_steps = point.calls, point.steps + 1
    before = trials.run(None)
    if before.error is not None:
        raise RemedyError(
            f"no remedy could be rehearsed: with {_MEMORY_FACTOR} times the memory, the program "
            f"ends with {before.error}"
        )
    totals = [device.memory_bytes for device in rig.devices if device.node == 0]
    lack = [needed / total for needed, total in zip(before.allocated_bytes, totals, strict=False)]
    index = lack.index(max(lack))
    console = Console(stderr=True)
    words = "Rehearsing remedies"
    names = [*REMEDIES] if names is None else names
    if not console.is_terminal:
        sys.stderr.write(f"{words}: {', '.join(names)}\n")
    hidden = not console.is_terminal
    savings = []
    for name in track(names, words, console=console, transient=True, disable=hidden):
        try:
            after = trials.run(name)
        except RemedyError:
            continue  # what a program does under this remedy is no part of its own error
        if after.error is not None:
            continue
        saving = compare_outcomes(name, before, after, index)
        if saving.saved_bytes >= _LEAST_FRACTION * before.allocated_bytes[index]:
            savings.append(saving)
    savings.sort(key=lambda saving: -saving.saved_bytes)
    return Savings(point.calls, index, before.allocated_bytes[index], totals[index], tuple(savings))


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
    )


class _Trials:
    """Trials of one program, each in a process of its own."""

    def __init__(self, program: Program, rig: VirtualRig, environment: Mapping[str, str]) -> None:
        self._program = program
        self._rig = rig
        self._environment = environment
        self._limit_seconds: float | None = None
        self.most_calls: int | None = None
        self.most_steps: int | None = None

    def run(self, remedy: str | None, memory_factor: int = _MEMORY_FACTOR) -> Outcome:
        """Run the program with a remedy, up to the point that the attributes give.

        Raises:
            RemedyError: the process ended without an outcome, or took too long.
        """
        with tempfile.TemporaryDirectory(prefix="anyrig-remedy-") as folder:
            path = Path(folder) / "outcome.json"
            order = Order(
                asdict(self._program),
                str(self._rig),
                memory_factor,
                remedy,
                self.most_calls,
                self.most_steps,
                str(path),
            )
            started = time.monotonic()
            self._start(order)
            if self._limit_seconds is None:
                seconds = time.monotonic() - started
                self._limit_seconds = max(_MOST_TIMES * seconds, _LEAST_SECONDS)
            if not path.exists():
                raise RemedyError(
                    f"a trial with the remedy {remedy!r} ended without a result; the program may "
                    "end its process itself, as os._exit does"
                )
            return Outcome.read(path)

    def _start(self, order: Order) -> None:
        from .remedy import REMEDIES

        added = {} if order.remedy is None else REMEDIES[order.remedy].environment
        try:
            subprocess.run(
                [sys.executable, "-m", trial.__name__],
                input=json.dumps(asdict(order)),
                env={**self._environment, **added},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                timeout=self._limit_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RemedyError(
                f"a trial with the remedy {order.remedy!r} took longer than "
                f"{self._limit_seconds:.0f} s; the first trial took a tenth of this at most"
            ) from None
