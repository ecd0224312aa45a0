"""What engines that divide a batch share: its parts are cut, and their results are joined."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...transfer.arguments import move_arguments, move_tensors
from ..accumulation import Accumulation, refuse_with_accumulate
from ..batch_statistics import warn_of_batch_norm, warn_of_written_buffers
from ..compiling import leave_to_modules, refuse_several_devices
from ..losses.checked_means import CheckedCalls
from ..losses.even_means import targets_of
from ..losses.loss import Criterion, compute_loss_part, loss_for_target
from ..losses.loss_part import LossPart
from ..losses.means_of_parts import noting_means
from ..losses.mistakes import explain_call
from ..losses.own_loss import HalvesCheck
from ..losses.same_by_halves import Differences
from ..losses.whole import combine_counts, combine_losses
from ..named_arguments import take_samples, take_target
from ..parts.call import Call, describe_call, may_pack, without_trace
from ..parts.divided_dimension import Answer
from ..parts.outputs import join_outputs
from ..parts.samples import count_arguments, name_argument
from ..parts.scatter import divide, exactly
from .engine import Engine
from .first_call import check_first_call
from .replicas.batch_norm import explain_single_sample, needs_several_samples

# The buffers that the first two devices have written, by name.
Written = Sequence[Mapping[str, Tensor]]


@dataclass(eq=False)
class CallState:
    """What the calls of one model leave for the next; a copy of the model has its own."""

    accumulation: Accumulation | None  # if the model was spread with `accumulate`
    # Which dimension of each output has the samples, known from earlier calls.
    known_dimensions: dict[Hashable, Answer] = field(default_factory=dict)
    checked: CheckedCalls = field(default_factory=CheckedCalls)
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while replicas compute
    asked: threading.local = field(default_factory=threading.local)  # options for `forward`


@dataclass(frozen=True)
class Parts:
    """The parts of one batch, for the devices that have samples.

    Attributes:
        active: the numbers of these devices, in order.
        samples: how many samples each of them has.
        given: the arguments of each, ``(args, kwargs)``.
        divided: the samples of every device; None if the batch was not divided.
        loss: the criterion, if the call has a target for it.
        is_first: whether to check what each device computes.
        joins: whether the results are joined.
        targets: gets what means over targets have divided by.
    """

    active: Sequence[int]
    samples: Sequence[int]
    given: Sequence[tuple[Any, Any]]
    divided: Sequence[int] | None
    loss: Criterion | None
    is_first: bool
    joins: bool
    targets: list[Tensor] = field(default_factory=list)


class DividedEngine(Engine):
    """Computes each part of a batch on its device, and joins the outputs or the losses.

    On one device it calls the module unchanged. A subclass says how parts are computed.
    """

    _state: CallState

    def _start(self) -> None:
        """Make the state of a model that has not been called yet."""
        accumulate = self.layout.accumulate
        self._state = CallState(Accumulation(self.module) if accumulate else None)

    @abstractmethod
    def _compute_parts(self, parts: Parts) -> tuple[list[Any], Written]:
        """Return the results of all parts in order, and in a first call what forwards wrote."""

    @abstractmethod
    def _compute_on(
        self, device: torch.device, function: Callable[..., Any], given: tuple[Any, Any]
    ) -> Any:
        """Call a function with the arguments of a part on one device, apart from the others."""

    def _is_inside(self) -> bool:
        """Return whether this call is made while another model computes a part."""
        return False

    def _begin_step(self) -> None:
        """Prepare a step, before its batch is divided."""

    def forward(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module on each device with a part of the batch, and gather the outputs."""
        # What a thread holds is no input of compiled code; see `scattered`.
        is_compiling = torch.compiler.is_compiling()
        gathers = is_compiling or self._state.asked.__dict__.pop("gathers", True)
        samples = take_samples(self.module, kwargs) if "samples" in kwargs else None
        devices = len(self.layout.devices)
        if is_compiling:
            if devices > 1:
                refuse_several_devices(type(self.module).__name__, devices)
            if self._state.accumulation is not None:
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
        if self._state.accumulation is None:
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
            differences = self._check_first_call(self.module, None, whole, samples or 0, lead)
            with noting_means() as noted:
                output = self.module(*inputs, **kwargs)
            differences.refuse(output)
            return self._note_backward(output, samples, [count for _, count in noted.means])
        is_first = self._state.checked.note_loss(samples or 0)
        check = HalvesCheck(dim, may_read_module=True) if is_first else None
        part = compute_loss_part(self.module, loss, lead, samples or 0, check, *inputs, **kwargs)
        joined = combine_losses([part], lead, dim)
        return self._note_backward(joined, None if samples is None else [part])

    def _note_backward(
        self,
        output: Any,
        counted: int | list[LossPart] | None,
        targets: Sequence[Tensor] = (),
    ) -> Any:
        accumulation = self._state.accumulation
        if accumulation is None:
            return output
        if isinstance(counted, list):
            count = combine_counts(counted, self.layout.lead)
            return accumulation.note(output, count, True, [*targets, *targets_of(counted)])
        return accumulation.note(output, counted, False, targets)

    def _check_first_call(
        self,
        module: torch.nn.Module,
        loss: Criterion | None,
        part: tuple[Any, Any],
        samples: int,
        device: torch.device,
    ) -> Differences:
        call, checked = partial(self._compute_on, device), self._state.checked
        return check_first_call(call, checked, self.layout, module, loss, part, samples, device)

    def _call_spread(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], gathers: bool, samples: int | None
    ) -> Any:
        if self._is_inside():
            inner = "a model within a replica of another"
            refuse_with_accumulate(self.layout.accumulate, inner, "spread the outer one alone")
            output = self._call_module(inputs, kwargs)
            return output if gathers else [output]
        with self._state.lock:
            return self._call_parts(inputs, kwargs, gathers, samples)

    def _call_parts(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], gathers: bool, given: int | None
    ) -> Any:
        state = self._state
        self._begin_step()
        loss, layout = loss_for_target(self.module, self.loss, kwargs), self.layout
        values, divided = divide(
            (inputs, kwargs), layout.devices, self._split, layout.dim, name_argument, True, given
        )
        # What cannot be divided is computed once, on the lead.
        counts = divided or (1,)
        active = [i for i, count in enumerate(counts) if count] or [0]
        samples = [counts[i] for i in active]
        is_first = len(active) > 1 and torch.is_grad_enabled() and state.checked.note(kwargs)
        if is_first:
            warn_of_batch_norm(self.module, layout.plan)
        parts = Parts(
            active, samples, [values[i] for i in active], divided, loss, is_first, gathers
        )
        try:
            results, written = self._compute_parts(parts)
            if is_first:
                warn_of_written_buffers(layout.plan, *written)
        except BaseException as error:
            state.checked = CheckedCalls()  # the next call is checked as a first one
            if isinstance(error, ValueError):
                explain_single_sample(error)
            raise
        if loss is not None:
            whole = combine_losses(results, layout.output_device, layout.dim)
            return self._note_backward(whole, results if divided else None, parts.targets)
        if not gathers:
            return results
        call = Call(
            samples,
            layout.dim,
            lambda: describe_call(self.module, inputs, kwargs),
            lambda count: self._call_lead_once_more((inputs, kwargs), count, sum(samples), given),
            state.known_dimensions,
            lambda: may_pack(self.module, (inputs, kwargs)),
        )
        joined = join_outputs(results, layout.output_device, call)
        return self._note_backward(joined, None if divided is None else sum(divided), parts.targets)

    def _call_lead_once_more(self, call: Any, samples: int, of: int, given: int | None) -> Any:
        """Return the module's output for the first samples of a batch, without side effects.

        `call` is ``(args, kwargs)``; `given` is what the caller said with ``samples=``.
        """
        lead, split = self.layout.lead, exactly((samples, of - samples))
        with without_trace([self.module], [lead]):
            first = divide(
                call, (lead, lead), split, self.layout.dim, name_argument, True, given
            ).values[0]
            return self._compute_on(lead, self.module, first)

    def scattered(
        self, call: Callable[..., Any], inputs: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any]:
        """Return the outputs where they are."""
        refuse_with_accumulate(self.layout.accumulate, "scattered()", "use loss=")
        self._state.asked.gathers = False
        try:
            found = call(*inputs, **kwargs)
            # Compiled code does not read the option, and returns the output of its one device.
            return [found] if "gathers" in self._state.asked.__dict__ else [*found]
        finally:
            self._state.asked.__dict__.clear()  # a forward pre-hook may have raised

    def _split(self, samples: int) -> tuple[int, ...]:
        """Return how many samples each device gets, never one alone if a layer needs several."""
        shares = self.layout.shares
        counts = shares.split(samples)
        # This runs in each step, so the modules are searched only if necessary.
        if 1 in counts and needs_several_samples(self.module):
            return shares.join_singles(counts)
        return counts

    def __getstate__(self) -> dict[str, Any]:
        # `_start` makes replicas, streams and processes again where the model is unpickled.
        return {**vars(self), "_state": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()
