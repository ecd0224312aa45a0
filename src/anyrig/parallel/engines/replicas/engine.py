"""Replicas in one process, which drives all devices.

More than 400 lines: calls on one device and calls on several share one state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ....transfer.arguments import move_arguments, move_tensors
from ...accumulation import Accumulation, refuse_with_accumulate
from ...batch_statistics import warn_of_batch_norm, warn_of_written_buffers, written_buffers
from ...compiling import leave_to_modules, refuse_several_devices
from ...layout import Layout
from ...losses.checked_means import FirstCall
from ...losses.even_means import targets_of
from ...losses.loss import Criterion, compute_loss_part, loss_for_target
from ...losses.loss_part import LossPart
from ...losses.means_of_parts import noting_means
from ...losses.mistakes import explain_call
from ...losses.own_loss import HalvesCheck
from ...losses.same_by_halves import NOTHING
from ...losses.whole import combine_counts, combine_losses
from ...named_arguments import take_samples, take_target
from ...parts.call import Call, describe_call, may_pack, without_trace
from ...parts.outputs import join_outputs
from ...parts.samples import count_arguments, name_argument
from ...parts.scatter import divide, exactly
from ...shares.measure import StepClock
from ..engine import Engine
from .batch_norm import explain_single_sample, needs_several_samples
from .counted_targets import count_targets_together
from .first_call import check_first_call
from .meeting import Meeting, is_inside
from .replicas import ReplicaSet
from .run import Run
from .side_by_side import SideBySide


class ReplicaEngine(Engine):
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
        self._run = Run(
            ReplicaSet(self.module, self.layout.devices),
            SideBySide(self.layout.devices),
            Accumulation(self.module) if self.layout.accumulate else None,
        )

    def forward(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module on each device with a part of the batch, and gather the outputs."""
        # What a thread holds is no input of compiled code; see `scattered`.
        is_compiling = torch.compiler.is_compiling()
        gathers = is_compiling or self._run.asked.__dict__.pop("gathers", True)
        samples = take_samples(self.module, kwargs) if "samples" in kwargs else None
        devices = len(self.layout.devices)
        if is_compiling:
            if devices > 1:
                refuse_several_devices(type(self.module).__name__, devices)
            if self._run.accumulation is not None:
                leave_to_modules()
            # No try block here: the compiler gives up at a graph break within one.
            with self.layout.computing():
                return self._call_alone(inputs, kwargs, gathers, samples)
        try:
            call = self._call_alone if devices == 1 else self._call_spread
            if self.layout.precision is None:  # entering a context takes a microsecond
                return call(inputs, kwargs, gathers, samples)
            with self.layout.computing():
                return call(inputs, kwargs, gathers, samples)
        except TypeError as error:
            if self.loss is not None:
                explain_call(error, self.module, inputs, kwargs)
            raise

    def _call_alone(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], gathers: bool, samples: int | None
    ) -> Any:
        lead, output_device = self.layout.lead, self.layout.output_device
        inputs, kwargs = move_arguments(inputs, kwargs, lead)
        if self._run.accumulation is None:
            output = self._call_module(inputs, kwargs)
        else:
            output = self._call_counted(inputs, kwargs, samples)
        if not gathers:
            return [output]
        return output if output_device == lead else move_tensors(output, output_device)

    def _call_module(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        loss = loss_for_target(self.module, self.loss, kwargs)
        if loss is None:
            return self.module(*inputs, **kwargs)
        others = kwargs.copy()
        target = take_target(self.module, inputs, others)
        value = loss(self.module(*inputs, **others), target)
        return value[0] / value[1] if type(value) is tuple else value

    def _call_counted(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], samples: int | None
    ) -> Any:
        loss = loss_for_target(self.module, self.loss, kwargs)
        lead, dim = self.layout.lead, self.layout.dim
        if samples is None:
            samples = count_arguments(inputs, kwargs, dim)
        if loss is None:
            whole = inputs, kwargs
            differences = check_first_call(
                self._run, self.layout, self.module, None, whole, samples or 0, lead
            )
            with noting_means() as noted:
                output = self.module(*inputs, **kwargs)
            differences.refuse(output)
            return self._note_backward(output, samples, [count for _, count in noted.means])
        is_first = self._run.checked.note_loss(samples or 0)
        check = HalvesCheck(dim, may_read_module=True) if is_first else None
        part = compute_loss_part(self.module, loss, lead, samples or 0, check, *inputs, **kwargs)
        joined = combine_losses([part], lead, dim)
        return self._note_backward(joined, None if samples is None else [part])

    def _note_backward(
        self,
        output: Any,
        counted: int | list[LossPart] | None,
        targets: Sequence[torch.Tensor] = (),
    ) -> Any:
        accumulation = self._run.accumulation
        if accumulation is None:
            return output
        if isinstance(counted, list):
            count = combine_counts(counted, self.layout.lead)
            return accumulation.note(output, count, True, [*targets, *targets_of(counted)])
        return accumulation.note(output, counted, False, targets)

    def _call_spread(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], gathers: bool, samples: int | None
    ) -> Any:
        if is_inside():
            inner = "a model within a replica of another"
            refuse_with_accumulate(self.layout.accumulate, inner, "spread the outer one alone")
            output = self._call_module(inputs, kwargs)
            return output if gathers else [output]
        with self._run.lock:
            return self._call_replicas(inputs, kwargs, gathers, samples)

    def _call_replicas(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], gathers: bool, given: int | None
    ) -> Any:
        run = self._run
        run.side_by_side.wait()
        loss = loss_for_target(self.module, self.loss, kwargs)
        clock = self._start_clock()  # before copies, which take longer for more samples
        layout = self.layout
        values, divided = divide(
            (inputs, kwargs), layout.devices, self._split, layout.dim, name_argument, True, given
        )
        # What cannot be divided is computed once, on the lead.
        counts = divided or (1,)
        active = [i for i, count in enumerate(counts) if count] or [0]
        samples = [counts[i] for i in active]
        if clock is not None:
            clock.samples = divided
        meeting = Meeting([layout.devices[i] for i in active])
        mark = clock.mark if clock else lambda _: None
        replicas = run.replicas.begin([i - 1 for i in active if i], meeting, mark)
        modules = replicas if active[0] else [self.module, *replicas]
        functions: list[Callable[..., Any]] = [*modules]
        if loss is not None:
            functions = [
                partial(compute_loss_part, module, loss, device, count, None)
                for module, device, count in zip(modules, meeting.devices, samples, strict=True)
            ]
        targets: list[torch.Tensor] = []
        is_first = False
        if len(active) > 1:
            is_first = torch.is_grad_enabled() and run.checked.note(kwargs)
            if is_first:
                warn_of_batch_norm(self.module, layout.plan)
            first = partial(FirstCall, has_loss=loss is not None) if is_first else None
            functions = count_targets_together(functions, meeting, samples, targets, first)
        try:
            differences = NOTHING
            if len(active) > 1:
                part, lead = values[active[0]], meeting.devices[0]
                differences = check_first_call(
                    run, layout, modules[0], loss, part, samples[0], lead
                )
            results = run.side_by_side.run(meeting, functions, [values[i] for i in active])
            differences.refuse(results[0])
            if is_first:
                warn_of_written_buffers(layout.plan, *map(written_buffers, modules[:2]))
        except ValueError as error:
            explain_single_sample(error)
            raise
        finally:
            run.replicas.end()
        if active[0]:
            run.replicas.adopt_buffers(active[0] - 1)
        elif gathers and len(active) > 1 and torch.is_grad_enabled():
            run.replicas.join_attributes(active, samples, layout.dim)
        if loss is not None:
            whole = combine_losses(results, layout.output_device, layout.dim)
            return self._note_backward(whole, results if divided else None, targets)
        if not gathers:
            return results
        call = Call(
            samples,
            layout.dim,
            lambda: describe_call(self.module, inputs, kwargs),
            lambda count: self._call_lead_once_more((inputs, kwargs), count, sum(samples), given),
            run.known_dimensions,
            lambda: may_pack(self.module, (inputs, kwargs)),
        )
        joined = join_outputs(results, layout.output_device, call)
        return self._note_backward(joined, None if divided is None else sum(divided), targets)

    def _call_lead_once_more(self, call: Any, samples: int, of: int, given: int | None) -> Any:
        """Return the module's output for the first samples of a batch, without side effects.

        `call` is ``(args, kwargs)``; `given` is what the caller said with ``samples=``.
        """
        lead, split = self.layout.lead, exactly((samples, of - samples))
        with without_trace([self.module], [lead]):
            first = divide(
                call, (lead, lead), split, self.layout.dim, name_argument, True, given
            ).values[0]
            return self._run.side_by_side.run(Meeting([lead]), [self.module], [first])[0]

    def scattered(
        self, call: Callable[..., Any], inputs: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any]:
        """Return the outputs where they are."""
        refuse_with_accumulate(self.layout.accumulate, "scattered()", "use loss=")
        self._run.asked.gathers = False
        try:
            found = call(*inputs, **kwargs)
            # Compiled code does not read the option, and returns the output of its one device.
            return [found] if "gathers" in self._run.asked.__dict__ else [*found]
        finally:
            self._run.asked.__dict__.clear()  # a forward pre-hook may have raised

    def refresh(self) -> None:
        """Make the next call copy every parameter and buffer to the other devices again."""
        self._run.replicas.refresh()

    def _split(self, samples: int) -> tuple[int, ...]:
        """Return how many samples each device gets, never one alone if a layer needs several."""
        shares = self.layout.shares
        counts = shares.split(samples)
        # This runs in each step, so the modules are searched only if necessary.
        if 1 in counts and needs_several_samples(self.module):
            return shares.join_singles(counts)
        return counts

    def _start_clock(self) -> StepClock | None:
        """Correct the shares from the last step; return a clock for this step if it is measured."""
        clock, self._run.clock = self._run.clock, None
        step = clock.read() if clock is not None else None
        if step is not None:
            self.layout = replace(self.layout, shares=self.layout.shares.measured(step))
        if self.layout.shares.held or not torch.is_grad_enabled():
            return None
        clock = self._run.clock = StepClock(self.layout.devices)
        clock.start()
        return clock

    def __getstate__(self) -> dict[str, Any]:
        # `_start` makes replicas and streams again in the process that unpickles the model.
        return {**vars(self), "_run": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()
