"""Injecting a failure: the part that runs in the ranks of a rehearsal."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from ...programs.watcher import Order, Watcher
from .fault import KILL, LINK, SLOW, Fault
from .rank_events import FAILED, STEPPED, note_event


class FaultInjection(Watcher):
    """Counts the steps of this rank, notes when they end, and fails in the requested one.

    Args:
        fault: the failure.
        events: the file for notes.
    """

    def __init__(self, fault: Fault, events: Path) -> None:
        self._fault = fault
        self._events = events
        # Only the first attempt fails, so that the restarted group can show that it continues.
        is_first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        self._fails = is_first_attempt and int(os.environ["RANK"]) == fault.rank
        self._steps = 0
        self._computed_seconds: float | None = None

    @classmethod
    def order(cls, fault: Fault, events: Path) -> Order:
        """Return the order for a rank to fail so."""
        return Order(f"{__name__}:{cls.__name__}", [str(fault), str(events)])

    @classmethod
    def from_options(cls, options: Any) -> FaultInjection:
        """Return an injection with the options of an `order`."""
        fault, events = options
        return cls(Fault.parse(fault), Path(events))

    def begin(self) -> None:
        """Begin to count."""
        from ..optimizer_steps import OptimizerSteps

        OptimizerSteps(self._after_step, on_begin=self._before_step).start()

    def _before_step(self) -> None:
        self._steps += 1
        if not self._fails:
            return
        if self._steps == self._fault.step:
            note_event(self._events, FAILED)
            self._fail_once()
        if self._fault.kind == SLOW and self._steps >= self._fault.step - 1:
            self._slow_down()

    def _fail_once(self) -> None:
        if self._fault.kind == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._fault.kind == LINK:
            from .cut_link import cut_link

            cut_link()

    def _slow_down(self) -> None:
        """Keep the GPU busy for the additional time that a slower GPU would have needed."""
        import torch

        from ...virtual.build import load_extension

        device, before = torch.cuda.current_device(), self._computed_seconds
        if before is not None and self._steps >= self._fault.step:
            own = _computed_seconds(device) - before
            load_extension().run_for((self._fault.factor - 1) * own)
        self._computed_seconds = _computed_seconds(device)

    def _after_step(self) -> None:
        if self._steps == 1:
            note_event(self._events, STEPPED)


def _computed_seconds(device: int) -> float:
    from ...virtual.clock_reading import clock

    return clock().devices[device].compute_seconds
