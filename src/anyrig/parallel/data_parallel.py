"""A module with a replica on each device: what `spread` returns in one process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..devices.place import Place, Places
from ..private_names import refuse_missing
from ..transfer.arguments import move_arguments, move_tensors
from .accumulation import Accumulation, refuse_with_accumulate
from .batch.call import Call, describe_call, may_pack, without_trace
from .batch.outputs import join_outputs
from .batch.samples import count_arguments, name_argument
from .batch.scatter import divide, exactly
from .compiling import leave_to_modules, refuse_several_devices
from .device_ids import misses_gpus, rig_of
from .layout import Layout, make_layout
from .losses.checked_means import FirstCall
from .losses.even_means import targets_of
from .losses.loss import (
    Criterion,
    LossPart,
    combine_counts,
    combine_losses,
    compute_loss_part,
    explain_loss,
    loss_for_target,
)
from .losses.means_of_parts import noting_means
from .losses.mistakes import explain_call, refuse_scattered_loss
from .named_arguments import take_samples, take_target
from .plans import Replicas
from .replicas.batch_norm import explain_single_sample, needs_several_samples
from .replicas.counted_targets import count_targets_together
from .replicas.meeting import Meeting, is_inside
from .replicas.replicas import ReplicaSet
from .replicas.run import Run
from .replicas.side_by_side import SideBySide
from .replicas.transparent import TransparentModule, require_plain_module
from .shares.measure import StepClock


class DataParallel(TransparentModule):
    """Calls a module on every device, each with a share of the batch.

    ::

        model = anyrig.DataParallel(Net().to("cuda:0"))
        loss = criterion(model(x), y)  # divides x over the devices, gathers outputs on the lead
        loss.backward()                # on every device; adds the gradients on the lead

    The lead (the first device) computes with the module itself, whose parameters the optimizer
    updates. The module's attributes are reachable through this object. Changes to the module
    (parameters, modes, hooks, attributes, layers) take effect at the next call. The replicas on the
    other devices are kept between calls, and only what changed is copied to them. `anyrig.spread`
    does the same and has more options.

    All replicas share objects that are neither modules, tensors nor containers.

    Args:
        module: the module, on the first device; or on the CPU if there is one device only.
        device_ids: the devices, the lead first; by default all accelerators in order of index. On
            a machine without accelerators the module is called on the CPU, as `nn.DataParallel`
            does, with a warning.
        output_device: where outputs are gathered; by default the lead.
        dim: the dimension along which batches are divided.
    """

    _layout: Layout
    _loss: Criterion | None
    _run: Run

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Places | None = None,
        output_device: Place | None = None,
        dim: int = 0,
    ) -> None:
        refuse_missing("parallel")
        if misses_gpus(device_ids):
            warnings.warn(
                f"device_ids={device_ids} was given, but PyTorch finds no GPU: the module is "
                "called on the CPU. If this machine has GPUs, anyrig devices shows why PyTorch "
                "does not see them",
                stacklevel=2,
            )
            device_ids, output_device = None, None
        rig = rig_of(device_ids)
        lead = rig.lead.torch_device
        if len(rig) == 1:
            module.to(lead)
        self._set_up(module, make_layout(rig, Replicas(), output_device, dim), None)

    @classmethod
    def with_layout(
        cls, module: torch.nn.Module, layout: Layout, loss: Criterion | None
    ) -> DataParallel:
        """Return a module spread as `layout` says; see `anyrig.spread`."""
        model = cls.__new__(cls)
        model._set_up(module, layout, loss)
        return model

    def _set_up(self, module: torch.nn.Module, layout: Layout, loss: Criterion | None) -> None:
        require_plain_module(module)
        super().__init__(module)
        explanation = None if loss is None else explain_loss(loss)
        self.__dict__.update(_layout=replace(layout, loss=explanation), _loss=loss)
        self._start()

    def _start(self) -> None:
        self.__dict__["_run"] = Run(
            ReplicaSet(self.module, self._layout.devices),
            SideBySide(self._layout.devices),
            Accumulation(self.module) if self._layout.accumulate else None,
        )

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module on each device with a part of the batch, and gather the outputs.

        Tensors among the arguments may be on any device. If the model was spread with a loss,
        ``target=`` goes to the loss, and the loss of the whole batch is returned instead of the
        outputs; the module gets the target, too, if its forward has an argument of this name. A
        floating-point number that the module returns, such as a loss, is treated as a mean over
        samples. ``samples=`` says how many samples the arguments have, where they do not show it;
        a forward that has an argument of this name gets it instead.

        Raises:
            BatchError: the batch cannot be divided, or the outputs of its parts cannot be joined.
            MoveError: an argument without a method `to` has a tensor on another device.
            SpreadError: a parameter is not on the lead; or the model was compiled by
                `torch.compile` and is spread over several devices.
            Exception: raised by a replica; a note gives its device and its arguments' shapes.
        """
        # What a thread holds is no input of compiled code; see `scattered`.
        is_compiling = torch.compiler.is_compiling()
        gathers = is_compiling or self._run.asked.__dict__.pop("gathers", True)
        samples = take_samples(self.module, kwargs) if "samples" in kwargs else None
        devices = len(self._layout.devices)
        if is_compiling:
            if devices > 1:
                refuse_several_devices(type(self.module).__name__, devices)
            if self._run.accumulation is not None:
                leave_to_modules()
            # No try block here: the compiler gives up at a graph break within one.
            with self._layout.computing():
                return self._call_alone(inputs, kwargs, gathers, samples)
        try:
            call = self._call_alone if devices == 1 else self._call_spread
            if self._layout.precision is None:  # entering a context takes a microsecond
                return call(inputs, kwargs, gathers, samples)
            with self._layout.computing():
                return call(inputs, kwargs, gathers, samples)
        except TypeError as error:
            if self._loss is not None:
                explain_call(error, self.module, inputs, kwargs)
            raise

    def _call_alone(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], gathers: bool, samples: int | None
    ) -> Any:
        lead, output_device = self._layout.lead, self._layout.output_device
        inputs, kwargs = move_arguments(inputs, kwargs, lead)
        if self._run.accumulation is None:
            output = self._call_module(inputs, kwargs)
        else:
            output = self._call_counted(inputs, kwargs, samples)
        if not gathers:
            return [output]
        return output if output_device == lead else move_tensors(output, output_device)

    def _call_module(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        loss = loss_for_target(self.module, self._loss, kwargs)
        if loss is None:
            return self.module(*inputs, **kwargs)
        others = kwargs.copy()
        target = take_target(self.module, inputs, others)
        value = loss(self.module(*inputs, **others), target)
        return value[0] / value[1] if type(value) is tuple else value

    def _call_counted(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], samples: int | None
    ) -> Any:
        loss = loss_for_target(self.module, self._loss, kwargs)
        lead, dim = self._layout.lead, self._layout.dim
        if samples is None:
            samples = count_arguments(inputs, kwargs, dim)
        if loss is None:
            with noting_means() as noted:
                output = self.module(*inputs, **kwargs)
            return self._note_backward(output, samples, [count for _, count in noted.means])
        part = compute_loss_part(self.module, loss, lead, samples or 0, *inputs, **kwargs)
        whole = combine_losses([part], lead, dim)
        return self._note_backward(whole, None if samples is None else [part])

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
            count = combine_counts(counted, self._layout.lead)
            return accumulation.note(output, count, True, [*targets, *targets_of(counted)])
        return accumulation.note(output, counted, False, targets)

    def _call_spread(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], gathers: bool, samples: int | None
    ) -> Any:
        if is_inside():
            inner = "a model within a replica of another"
            refuse_with_accumulate(self._layout.accumulate, inner, "spread the outer one alone")
            output = self._call_module(inputs, kwargs)
            return output if gathers else [output]
        with self._run.lock:
            return self._call_replicas(inputs, kwargs, gathers, samples)

    def _call_replicas(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], gathers: bool, given: int | None
    ) -> Any:
        run = self._run
        run.side_by_side.wait()
        loss = loss_for_target(self.module, self._loss, kwargs)
        clock = self._start_clock()  # before copies, which take longer for more samples
        layout = self._layout
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
                partial(compute_loss_part, module, loss, device, count)
                for module, device, count in zip(modules, meeting.devices, samples, strict=True)
            ]
        targets: list[torch.Tensor] = []
        if len(active) > 1:
            is_first = torch.is_grad_enabled() and run.checked.note(kwargs)
            check = partial(FirstCall, has_loss=loss is not None) if is_first else None
            functions = count_targets_together(functions, meeting, samples, targets, check)
        try:
            results = run.side_by_side.run(meeting, functions, [values[i] for i in active])
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
        lead, split = self._layout.lead, exactly((samples, of - samples))
        with without_trace(self.module, [lead]):
            first = divide(
                call, (lead, lead), split, self._layout.dim, name_argument, True, given
            ).values[0]
            return self._run.side_by_side.run(Meeting([lead]), [self.module], [first])[0]

    @property
    def device_ids(self) -> list[int | None]:
        """The indices of the devices, the lead's first; None for the CPU."""
        return [device.index for device in self._layout.devices]

    def scattered(self, *inputs: Any, **kwargs: Any) -> list[Any]:
        """Call the model and return the outputs where they are, without gathering them.

        ::

            criterion = anyrig.ParallelLoss(nn.CrossEntropyLoss())
            criterion(model.scattered(x), y).backward()

        There is one output for each device that had samples, in the order of the rig. `gather`
        joins them.

        Raises:
            TypeError: the call has ``target=``, and the model was spread with a loss.
            Exception: as for `forward`.
        """
        refuse_scattered_loss(self._loss, kwargs)
        refuse_with_accumulate(self._layout.accumulate, "scattered()", "use loss=")
        self._run.asked.gathers = False
        try:
            found = self(*inputs, **kwargs)
            # Compiled code does not read the option, and returns the output of its one device.
            return [found] if "gathers" in self._run.asked.__dict__ else [*found]
        finally:
            self._run.asked.__dict__.clear()  # a forward pre-hook may have raised

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Do nothing, like `join`, so that a loop written for the ranks of a group works here, too.

        Every backward pass adds its gradients to the parameters, which may be clipped at any time.
        """
        refuse_with_accumulate(self._layout.accumulate, "no_sync() or join()")
        yield

    join = no_sync

    def register_comm_hook(self, state: object, hook: object) -> None:
        """Do nothing: communication hooks are for the ranks of a process group."""

    def refresh(self) -> None:
        """Make the next call copy every parameter and buffer to the other devices again.

        ::

            for parameter, average in zip(model.parameters(), averages):
                parameter.data.copy_(average)
            model.refresh()

        Call this after writing to ``.data``, replaying a CUDA graph, or any other change that
        PyTorch does not record. The model notices changes by backward passes, optimizers,
        ``load_state_dict`` and in-place operations without this call.
        """
        self._run.replicas.refresh()

    def _split(self, samples: int) -> tuple[int, ...]:
        """Return how many samples each device gets, never one alone if a layer needs several."""
        shares = self._layout.shares
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
            self._layout = replace(self._layout, shares=self._layout.shares.measured(step))
        if self._layout.shares.held or not torch.is_grad_enabled():
            return None
        clock = self._run.clock = StepClock(self._layout.devices)
        clock.start()
        return clock

    def __getstate__(self) -> dict[str, Any]:
        # `_start` makes replicas and streams again in the process that unpickles the model.
        return {**super().__getstate__(), "_run": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._start()
