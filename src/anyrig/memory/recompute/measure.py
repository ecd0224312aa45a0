"""Measure what the blocks of a step save and cost."""

from __future__ import annotations

import functools
import gc
import traceback
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import nn

from ...errors import MemoryTrackingError
from ..failed_step import is_out_of_memory
from ..program_state import ProgramState, keep_random_numbers
from .costs import Costs, compute_costs
from .step_record import StepRecord, StepRecorder
from .timed_forward import Timer

_T = TypeVar("_T")


class StepRunner:
    """Runs a step of the program on one device, always with the same random numbers."""

    def __init__(
        self,
        step: Callable[[], object],
        blocks: Mapping[str, nn.Module],
        device: torch.device,
        state: ProgramState,
    ) -> None:
        self._step = step
        self._blocks = blocks
        self._device = device
        self._state = state
        self._put_back = keep_random_numbers()

    def measure_costs(self) -> Costs:
        """Return what the blocks save and cost, from three steps or more.

        If the step runs out of memory with all blocks kept, two steps replace it: one keeps the
        first half of the blocks, the other keeps the second half, and so on.

        Raises:
            MemoryTrackingError: the steps called the blocks in different orders.
        """
        recorder = StepRecorder(self._run_once, self._blocks, self._device)
        recorder.run(kept=())  # the optimizer gets its state, and libraries their workspaces
        reference = recorder.run(kept=())
        records: dict[frozenset[int], StepRecord] = {}
        pending = [frozenset(range(len(self._blocks)))]
        while pending:
            kept = pending.pop()
            record = self._run_if_it_fits(functools.partial(recorder.run, kept))
            if record is not None:
                _check_events(reference, record)
                records[kept] = record
            elif len(kept) > 1:
                first = frozenset(sorted(kept)[: len(kept) // 2])
                pending += [kept - first, first]
        return compute_costs(reference, records)

    def measure_steps(self) -> tuple[int, float] | None:
        """Return the peak of two steps in bytes, and the seconds of the second one on the device.

        None if a step ran out of memory.
        """
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        seconds = None
        for _ in range(2):
            seconds = self._run_if_it_fits(self._time_step)
            if seconds is None:
                return None
        assert seconds is not None
        return torch.cuda.max_memory_allocated(self._device), seconds

    def _run_once(self) -> None:
        self._put_back()
        self._step()

    def _time_step(self) -> float:
        with torch.cuda.device(self._device):
            timer = Timer()
            timer.record()
            self._run_once()
            timer.record()
        torch.cuda.synchronize(self._device)
        return timer.seconds()

    def _run_if_it_fits(self, run: Callable[[], _T]) -> _T | None:
        had_gradients = self._state.with_gradients()
        try:
            return run()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)
            self._state.drop_gradients(but=had_gradients)
            return None


def _check_events(reference: StepRecord, record: StepRecord) -> None:
    if record.events != reference.events:
        raise MemoryTrackingError(
            f"two calls of the step had {len(reference.events)} and {len(record.events)} events "
            "(forward and backward passes of blocks), or had them in another order, so one does "
            "not predict the other; let the step use one fixed batch"
        )
