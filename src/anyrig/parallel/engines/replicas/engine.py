"""Replicas in one process, which drives all devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...batch_statistics import written_buffers
from ...layout import Layout
from ...losses.checked_means import FirstCall
from ...losses.loss import Criterion, compute_loss_part
from ...losses.same_by_halves import NOTHING
from ...shares.measure import StepClock
from ..divided_engine import DividedEngine, Parts, Written
from .counted_targets import count_targets_together
from .meeting import Meeting, is_inside
from .replicas import ReplicaSet
from .run import Run
from .side_by_side import SideBySide


class ReplicaEngine(DividedEngine):
    """Calls a module on every device, each with a share of the batch.

    The lead (the first device) computes with the module itself, whose parameters the optimizer
    updates. Changes to the module (parameters, modes, hooks, attributes, layers) take effect at the
    next call. The replicas on the other devices are kept between calls, and only what changed is
    copied to them. All replicas share objects that are neither modules, tensors nor containers.
    """

    def __init__(self, module: torch.nn.Module, layout: Layout, loss: Criterion | None) -> None:
        super().__init__(module, layout, loss)
        self._start()

    def _start(self) -> None:
        super()._start()
        devices = self.layout.devices
        self._run = Run(ReplicaSet(self.module, devices), SideBySide(devices))

    def _is_inside(self) -> bool:
        return is_inside()

    def _begin_step(self) -> None:
        """Wait for an interrupted step; then start a clock if shares are measured."""
        self._run.side_by_side.wait()
        self._start_clock()  # before copies, which take longer for more samples

    def _compute_parts(self, parts: Parts) -> tuple[list[Any], Written]:
        run, layout, loss, active = self._run, self.layout, parts.loss, parts.active
        clock = run.clock
        if clock is not None:
            clock.samples = parts.divided
        meeting = Meeting([layout.devices[i] for i in active])
        mark = clock.mark if clock else lambda _: None
        replicas = run.replicas.begin([i - 1 for i in active if i], meeting, mark)
        modules = replicas if active[0] else [self.module, *replicas]
        functions: list[Callable[..., Any]] = [*modules]
        if loss is not None:
            functions = [
                partial(compute_loss_part, module, loss, device, count, None)
                for module, device, count in zip(
                    modules, meeting.devices, parts.samples, strict=True
                )
            ]
        if len(active) > 1:
            first = partial(FirstCall, has_loss=loss is not None) if parts.is_first else None
            functions = count_targets_together(
                functions, meeting, parts.samples, parts.targets, first
            )
        try:
            differences = NOTHING
            if len(active) > 1:
                part, lead = parts.given[0], meeting.devices[0]
                differences = self._check_first_call(modules[0], loss, part, parts.samples[0], lead)
            results = run.side_by_side.run(meeting, functions, parts.given)
            differences.refuse(results[0])
            written = [*map(written_buffers, modules[:2])] if parts.is_first else []
        finally:
            run.replicas.end()
        if active[0]:
            run.replicas.adopt_buffers(active[0] - 1)
        elif parts.joins and len(active) > 1 and torch.is_grad_enabled():
            run.replicas.join_attributes(active, parts.samples, layout.dim)
        return results, written

    def _compute_on(
        self, device: torch.device, function: Callable[..., Any], given: tuple[Any, Any]
    ) -> Any:
        return self._run.side_by_side.run(Meeting([device]), [function], [given])[0]

    def explain(self) -> Layout:
        """Return the layout as it is now, and what processes could do if the plan was chosen."""
        if not self.layout.is_chosen:
            return self.layout
        from ..processes.advice import explain_processes  # imports cloudpickle

        text = explain_processes(self.module, self.loss, self.layout)
        return replace(self.layout, processes=text)

    def refresh(self) -> None:
        """Make the next call copy every parameter and buffer to the other devices again."""
        self._run.replicas.refresh()

    def _start_clock(self) -> None:
        """Correct the shares from the last step; start a clock for this step if it is measured."""
        clock, self._run.clock = self._run.clock, None
        step = clock.read() if clock is not None else None
        if step is not None:
            self.layout = replace(self.layout, shares=self.layout.shares.measured(step))
        if self.layout.shares.held or not torch.is_grad_enabled():
            return
        clock = self._run.clock = StepClock(self.layout.devices)
        clock.start()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_run": None}
