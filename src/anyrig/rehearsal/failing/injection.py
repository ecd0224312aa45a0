"""Injecting a failure: the part that runs in the ranks of a rehearsal."""

from __future__ import annotations

import os
import signal
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...virtual.torch_import import when_torch_is_imported
from .fault import KILL, LINK, SLOW, Fault
from .rank_events import FAILED, STEPPED, note_event

if TYPE_CHECKING:
    from torch.optim import Optimizer

FAULT_VARIABLE, EVENTS_VARIABLE = "ANYRIG_FAULT", "ANYRIG_FAULT_EVENTS"


def inject_fault() -> None:
    """Prepare the failure that the environment variables describe, and record when steps end.

    Without these variables, do nothing. Call this before the program starts.
    """
    text, events = os.environ.get(FAULT_VARIABLE), os.environ.get(EVENTS_VARIABLE)
    if text is not None and events is not None:
        when_torch_is_imported(_Injection(Fault.parse(text), Path(events)).start)


class _Injection:
    """Counts the steps of this rank, and fails in the requested one."""

    def __init__(self, fault: Fault, events: Path) -> None:
        self._fault = fault
        self._events = events
        # Only the first attempt fails, so that the restarted group can show that it continues.
        is_first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        self._fails = is_first_attempt and int(os.environ["RANK"]) == fault.rank
        self._steps = 0
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._computed_seconds: float | None = None

    def start(self) -> None:
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        first = None if self._optimizer is None else self._optimizer()
        if first is None:
            self._optimizer = weakref.ref(optimizer)
        elif first is not optimizer:
            return
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

    def _after_step(self, *_: Any) -> None:
        if self._steps == 1:
            note_event(self._events, STEPPED)


def _computed_seconds(device: int) -> float:
    from ...virtual.clock_reading import clock

    return clock().devices[device].compute_seconds
