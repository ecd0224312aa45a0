"""What engines over ranks share: a rank computes its samples as a part of a global batch.

More than 400 lines: calls, exchanges with other ranks and backward passes share one state.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import BatchError, SpreadError
from ...processes.group.board import MEETING
from ...processes.group.direct_messages import open_messages
from ...processes.group.membership import current_context, current_group
from ...transfer.arguments import change_tensors
from ...transfer.beside import copy_in_order
from ..accumulation import Accumulation, no_count, refuse_with_accumulate
from ..backward_callback import queue_callback
from ..batch_statistics import warn_of_batch_norm
from ..compiling import leave_to_modules
from ..layout import Layout
from ..losses.checked_means import FirstCall
from ..losses.loss import Criterion, loss_for_target
from ..losses.means_of_parts import computing_part
from ..losses.mistakes import explain_call
from ..losses.own_loss import HalvesCheck
from ..losses.same_by_halves import NOTHING, Differences, compare_part
from ..named_arguments import take_samples, take_target
from ..parts.samples import count_arguments
from ..ranks.counted_targets import counted_over_ranks
from ..ranks.exchange import Exchange, Phase
from ..ranks.fixed_parameters import FixedParameters
from ..ranks.inputs import take_input
from ..ranks.passes import Forward
from ..ranks.run import Run
from ..ranks.states import Buffers
from ..ranks.whole_loss import whole_loss
from ..ranks.without_samples import compute_without_samples, first_samples, require_sample
from ..shares.measure import StepTime
from .engine import Engine
from .replicas.batch_norm import explain_single_sample


class RankEngine(Engine):
    """Calls a module with this rank's samples; the gradients are those of all ranks' samples.

    ::

        forward    samples ─▶ module ─▶ outputs           on this rank alone
        backward   the ranks exchange sample counts       which weight the parameters' gradients
                   one rank's buffers go to all ranks     while gradients are computed

    Subclasses average gradients over the ranks by DDP or FSDP2. Ranks meet in the forward only if
    it has collectives: for the loss of the global batch, for means over targets, for shards, and
    for synchronized batch normalization in training mode.
    """

    def __init__(self, module: torch.nn.Module, layout: Layout, loss: Criterion | None) -> None:
        if isinstance(loss, torch.nn.Module) and any(p.requires_grad for p in loss.parameters()):
            raise SpreadError(
                f"the loss {type(loss).__name__} has parameters to learn, but only the module's "
                "are averaged over the ranks; make the loss a part of the module that is spread"
            )
        super().__init__(module, layout, loss)
        self._device, self._reduces = layout.lead, True
        self._run: Run | None = None  # of a copy that has not been called yet
        self._start()

    def _start(self) -> Run:
        """Prepare this model; all ranks must prepare their models in the same order."""
        if current_group() is None:
            raise SpreadError(
                f"this {type(self.module).__name__} was spread over a process group, but this "
                "process is in none; use its attribute `module`, or start with anyrig run"
            )
        context = current_context()
        open_messages(context)
        context.counts["models"] += 1
        run = self._run = Run(
            context,
            number=context.counts["models"],
            buffers=Buffers(self.module, self.layout.plan),
            fixed=self._fix_parameters(),
            synchronized=[
                layer
                for layer in self.module.modules()
                if isinstance(layer, torch.nn.SyncBatchNorm)
            ],
            accumulation=Accumulation(self.module) if self.layout.accumulate else None,
        )
        return run

    def _has_collectives(self, run: Run) -> bool:
        """Return whether the module's own forward waits for the other ranks."""
        return any(layer.training for layer in run.synchronized)

    @abstractmethod
    def _fix_parameters(self) -> FixedParameters:
        """Return the check for changes of the module that the engine cannot follow."""

    @abstractmethod
    def _compute(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module so that the engine will reduce its gradients."""

    def forward(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the module's outputs for this rank's samples, or the global batch's loss."""
        if torch.compiler.is_compiling():
            leave_to_modules()
        samples = take_samples(self.module, kwargs)
        loss = loss_for_target(self.module, self.loss, kwargs)
        if self._run is not None:
            self._run.buffers.finish()
        try:
            with self.layout.computing():
                call = self._learn if torch.is_grad_enabled() else self._evaluate
                return call(inputs, kwargs, loss, samples)
        except TypeError as error:
            if self.loss is not None:
                explain_call(error, self.module, inputs, kwargs)
            raise

    def _evaluate(
        self,
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        loss: Criterion | None,
        samples: int | None,
    ) -> Any:
        if samples is None:
            counted = self._count(inputs, kwargs, is_needed=loss is not None)
            samples = 1 if counted is None else counted
        inputs, kwargs = self._bring(inputs, kwargs, None)
        target = take_target(self.module, inputs, kwargs) if loss is not None else None
        exchange = self._new_exchange(samples, loss)
        if exchange.forward:  # ranks meet in the forward
            exchange.start(Phase.FORWARD, learns=False)
            exchange.finish()
        given = kwargs if loss is None else {**kwargs, "target": target}
        run = self._run or self._start()
        differences = self._compare_halves(run, loss, (inputs, given), samples)
        output = self._compute_samples(self.module, inputs, kwargs, samples, loss is not None)
        differences.refuse(output)
        if loss is None:
            return output
        check = self._check_of_loss(run, samples)
        return whole_loss(loss, output, target, self._device, exchange, check)

    def _learn(
        self,
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        loss: Criterion | None,
        samples: int | None,
        exchange: Exchange | None = None,
        method: Callable[..., Any] | None = None,
    ) -> Any:
        has_left = exchange is not None
        run = self._run or self._start()
        joining, has_collectives = run.joining, self._has_collectives(run)
        if exchange is None:
            exchange = self._new_exchange(0, loss)
        if self._reduces:
            run.fixed.require_unchanged()
        if run.passes is not None:
            run.passes.forget()
        exchange.leads_to_global_loss = loss is not None
        counted = self._count(inputs, kwargs) if samples is None else samples
        inputs, kwargs = self._bring(inputs, kwargs, exchange)
        samples = 1 if counted is None else counted
        if not samples and not run.synchronized:  # before the ranks meet
            given = kwargs.copy()
            if loss is not None:
                take_target(self.module, inputs, given)
            require_sample((inputs, given), run.sample_of.get(loss is not None))
        if not has_left:
            exchange.samples = samples
            if run.context.measuring is not None:
                exchange.time = StepTime(self._device, samples)
            # On the CPU, one message may carry both the sample counts and the loss.
            may_wait = loss is not None and self._device.type == "cpu"
            if exchange.forward and not (may_wait and not joining and not has_collectives):
                exchange.start(Phase.FORWARD)
        if joining:
            run.last = exchange
        if samples and (loss is not None) not in run.sample_of:
            run.sample_of[loss is not None] = first_samples((inputs, kwargs), 1, self.layout.dim)
        targets: list[Tensor] = []
        forward = self._new_forward(run, exchange, loss is not None, targets)
        if run.accumulation and counted is None:
            raise no_count()
        target = take_target(self.module, inputs, kwargs) if loss is not None else None
        if has_collectives:
            exchange.finish()
        compute = method or self._compute
        add_up = counted_over_ranks(exchange, targets)
        is_first = run.checked.note(kwargs)
        first = FirstCall(samples, (inputs, kwargs), loss is not None) if is_first else None
        if is_first and dist.get_world_size() > 1:
            warn_of_batch_norm(self.module, self.layout.plan, over_ranks=True)
        given = kwargs if loss is None else {**kwargs, "target": target}
        differences = self._compare_halves(run, loss, (inputs, given), samples, method)
        with computing_part(add_up, first):
            output = self._compute_samples(compute, inputs, kwargs, samples, loss is not None)
            returned = output
            if loss is not None:
                check = self._check_of_loss(run, samples)
                output = whole_loss(loss, output, target, self._device, exchange, check)
        if first is not None:
            first.check_output(output)
        differences.refuse(returned)
        if loss is not None and run.accumulation and exchange.divisor is None:
            raise no_count()
        if run.passes is not None:
            run.passes.note(forward, output)
        return output

    def _check_of_loss(self, run: Run, samples: int) -> HalvesCheck | None:
        is_first = run.checked.note_loss(samples)
        return HalvesCheck(self.layout.dim, may_read_module=True) if is_first else None

    def _compare_halves(
        self,
        run: Run,
        loss: Criterion | None,
        part: Any,
        samples: int,
        method: Callable[..., Any] | None = None,
    ) -> Differences:
        """In a first call, return what does not follow from the halves of this rank's samples.

        Shards are gathered by all ranks together, so a rank does not compute once more.
        """
        divides = dist.get_world_size() > 1 or run.accumulation is not None
        accepts = self.layout.plan.local_statistics
        is_whole = accepts or self.layout.way == "shards" or not divides
        name = "" if method is None else method.__name__
        if is_whole or not run.checked.note_halves(part[1], samples, name):
            return NOTHING
        dim, device = self.layout.dim, self._device
        return compare_part(self.module, loss, part, samples, dim, device, method=method)

    def _new_forward(
        self, run: Run, exchange: Exchange, by_loss: bool, targets: Sequence[Tensor]
    ) -> Forward:
        moves_buffers = self.module.training and self._reduces and bool(run.buffers)
        accumulate = run.accumulation.follow(by_loss, targets) if run.accumulation else None

        def met() -> None:
            if accumulate is not None:
                accumulate(exchange.divisor if by_loss else exchange.total_samples)
            if moves_buffers:
                run.buffers.send(exchange.first_with_samples)
            time, balance = exchange.time, run.context.measuring
            if time is not None and balance is not None:
                queue_callback(lambda: balance.stop(time))

        return Forward(
            exchange,
            # A rank whose loop in `join` has ended meets in the forward only.
            meets_again=not run.joining,
            may_wait=not run.joining and self._reduces and accumulate is None,
            met=met,
        )

    def method(self, bound: Callable[..., Any], model: torch.nn.Module) -> Callable[..., Any]:
        """Return the method, whose gradients will be reduced like those of forward."""

        @functools.wraps(bound)
        def call(*inputs: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return bound(*inputs, **kwargs)
            return self._call_method(bound, inputs, kwargs)

        return call

    def _call_method(
        self, method: Callable[..., Any], inputs: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a method of the module, whose gradients will be reduced like those of forward."""
        samples = take_samples(self.module, kwargs, method)
        if samples is None:
            try:
                samples = self._count(inputs, kwargs)
            except BatchError as error:  # it may be no method that computes samples
                run = self._run or self._start()
                if run.passes is not None:
                    run.passes.uncounted = error
                samples = None
        if samples is None:
            return method(*inputs, **kwargs)
        with self.layout.computing():
            return self._learn(inputs, kwargs, None, samples, method=method)

    def _count(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], is_needed: bool = True
    ) -> int | None:
        """Return the number of samples of a call; None if its arguments have none.

        Raise BatchError if it is needed, and the arguments do not show it.
        """
        given = (self._run or self._start()).context.given_batches
        known = None if given is None else given.count((inputs, kwargs))
        if known is not None:
            return int(known)
        try:
            return count_arguments(inputs, kwargs, self.layout.dim)
        except BatchError:
            if is_needed:
                raise
            return None

    def _new_exchange(self, samples: int, loss: Criterion | None) -> Exchange:
        run = self._run or self._start()
        meets = loss is not None or run.joining or self._has_collectives(run)
        if meets:
            run.forwards += 1
        return Exchange(
            run.context,
            run.number,
            samples,
            own_loss=loss is not None,
            own_reduces=self._reduces,
            forward=run.forwards if meets else 0,
        )

    def _compute_samples(
        self,
        module: Callable[..., Any],
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        samples: int,
        with_loss: bool,
    ) -> Any:
        if samples:
            try:
                return module(*inputs, **kwargs)
            except ValueError as error:
                explain_single_sample(error)
                raise
        run = self._run or self._start()
        return compute_without_samples(
            self.module,
            module,
            (inputs, kwargs),
            run.sample_of.get(with_loss),
            self.layout.dim,
            may_repeat=not self._has_collectives(run),
        )

    def _bring(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], exchange: Exchange | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments on this rank's device.

        `exchange` is that of a forward with gradients.
        """
        device = self._device

        def is_meant(tensor: Tensor) -> bool:
            return tensor.device != device or (exchange is not None and tensor.requires_grad)

        def bring(tensor: Tensor) -> Tensor:
            here = copy_in_order(tensor, device)
            return take_input(here, exchange) if exchange and here.requires_grad else here

        inputs, kwargs = change_tensors(inputs, kwargs, is_meant, bring, device)
        return inputs, kwargs

    def scattered(
        self, call: Callable[..., Any], inputs: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any]:
        """Return this rank's output as a list of one."""
        refuse_with_accumulate(self.layout.accumulate, "scattered()", "use loss=")
        return [call(*inputs, **kwargs)]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Add up gradients on this rank alone, for forwards within the block."""
        refuse_with_accumulate(self.layout.accumulate, "no_sync()")
        before, self._reduces = self._reduces, False
        try:
            yield
        finally:
            self._reduces = before

    def begin_step_again(self) -> None:
        """Forget a step that failed on any rank. Every rank must call this at the same point.

        `anyrig.memory.survive` calls this. Ranks that failed at different points have begun
        different numbers of forwards and meetings, so these numbers start again.
        """
        run = self._run
        if run is None:
            return
        run.buffers.finish()
        run.forwards = run.context.counts[MEETING] = 0
        run.last = None
        if run.passes is not None:
            run.passes.forget()
        run.buffers.note_versions()

    def finish_state(self) -> None:
        """Wait until the buffers of the last step are here."""
        if self._run is not None:
            self._run.buffers.finish()

    def __getstate__(self) -> dict[str, Any]:
        self.finish_state()
        return {**vars(self), "_run": None}
