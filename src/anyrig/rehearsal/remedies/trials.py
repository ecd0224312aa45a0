"""Trials of one program, each in a process that is forked from one that has imported torch.

The imports take seconds, and a trial of a small program takes a tenth of a second.
"""

from __future__ import annotations

import json
import operator
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import psutil

from ...errors import RemedyError
from ...programs.program import Program
from ...units import format_bytes
from ...virtual.rig import VirtualRig
from ..more_memory import MEMORY_FACTOR
from . import trial
from .trial import Order, Outcome

# A trial may take this many times as long as the first one, and at least this many seconds.
_MOST_TIMES, _LEAST_SECONDS = 10, 120


class Trials:
    """Trials of one program. Use as a context manager, which ends the process that forks them.

    Attributes:
        most_calls: end trials before the next call of an outermost module; None for no limit.
        most_steps: end trials after this step of an optimizer; None for no limit.
    """

    def __init__(self, program: Program, rig: VirtualRig, environment: Mapping[str, str]) -> None:
        """Start the process, with the environment variables that the program started with."""
        self._program = program
        self._rig = rig
        self._process = subprocess.Popen(
            [sys.executable, "-m", trial.__name__],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self._limit_seconds: float | None = None
        self.most_calls: int | None = None
        self.most_steps: int | None = None

    def __enter__(self) -> Trials:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()  # which forks only; the last trial has ended
        self._process.communicate()

    def run(self, *remedies: str, memory_factor: int = MEMORY_FACTOR) -> Outcome:
        """Run the program with remedies, up to the point that the attributes give.

        Raises:
            RemedyError: the process ended without an outcome, or took too long.
        """
        from .remedy import REMEDIES

        with tempfile.TemporaryDirectory(prefix="anyrig-remedy-") as folder:
            path = Path(folder) / "outcome.json"
            order = Order(
                asdict(self._program),
                str(self._rig),
                memory_factor,
                remedies,
                {
                    key: text
                    for name in remedies
                    for key, text in REMEDIES[name].environment.items()
                },
                self.most_calls,
                self.most_steps,
                str(path),
            )
            started = time.monotonic()
            status = self._await(order)
            if self._limit_seconds is None:
                seconds = time.monotonic() - started
                self._limit_seconds = max(_MOST_TIMES * seconds, _LEAST_SECONDS)
            if not path.exists():
                raise RemedyError(f"{_describe(order)} ended without a result{_explain(status)}")
            return Outcome.read(path)

    def fits(self, remedies: Sequence[str], after: Outcome, usable_bytes: Sequence[int]) -> bool:
        """Return whether the program with remedies fits in the memory of the rig.

        Args:
            remedies: the remedies.
            after: the outcome with them on GPUs with more memory.
            usable_bytes: what each GPU of the rig has for tensors.
        """
        if any(map(operator.gt, after.allocated_bytes, usable_bytes)):
            return False
        if all(map(operator.le, after.reserved_bytes, usable_bytes)):
            return True
        # With less memory, the allocator releases what it has cached before it gives up.
        return self.run(*remedies, memory_factor=1).error is None

    def _await(self, order: Order) -> int:
        """Run a trial to its end, within the limit, and return its exit status."""
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        try:
            orders.write(json.dumps(asdict(order)).encode() + b"\n")
            child = int(answers.readline())
        except (OSError, ValueError):
            raise RemedyError(
                "no trial can be started: the process that imports torch for the trials has ended"
            ) from None
        in_time = bool(select.select([answers], [], [], self._limit_seconds)[0])
        if not in_time:
            os.kill(child, signal.SIGKILL)
        status = answers.readline()
        if not in_time:
            raise RemedyError(
                f"{_describe(order)} took longer than {self._limit_seconds:.0f} s; the first trial "
                "took at most a tenth of this"
            )
        return int(status or -signal.SIGKILL)  # no answer: the process that forks has ended, too


def _describe(order: Order) -> str:
    if not order.remedies:
        return "a trial of the unchanged program"
    names = " and ".join(map(repr, order.remedies))
    return f"a trial with the remedy {names}"


def _explain(status: int) -> str:
    """Return what may have ended a process without a result."""
    if status == -signal.SIGKILL:
        free = format_bytes(psutil.virtual_memory().available)
        return (
            ": the system killed its process, as it does when the host runs out of memory; now "
            f"{free} are available"
        )
    if status < 0:
        return f": its process was ended by signal {-status}"
    return "; the program may end its process itself, as os._exit does"
