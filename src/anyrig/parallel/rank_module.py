"""A module of which every rank computes its own part of a global batch.

More than 400 lines: a step over ranks in its order, with what a model keeps for it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ..errors import SpreadError
from ..processes.group.membership import Context, current_context, current_group, open_carrier
from ..transfer.tree import ATOM_TYPES, map_leaves
from .accumulation import Accumulation, count_arguments, no_count, refuse_with_accumulate
from .backward_callback import queue_callback
from .batch.samples import find_sample_count
from .compiling import leave_to_modules
from .group.exchange import Exchange, Phase
from .group.fixed_parameters import FixedParameters
from .group.states import Broadcast, Buffers
from .group.step_time import Pace
from .group.weighing import put_weight_on, take_weight_off
from .group.whole_loss import whole_loss
from .group.without_samples import compute_without_samples, count_listed, first_samples
from .layout import Layout
from .losses.loss import Criterion, explain_loss, loss_for_target
from .losses.mistakes import explain_call
from .replicas.transparent import TransparentModule
from .single_samples import explain_single_sample


@dataclass(eq=False)
class Run:
    """What a model keeps while it runs in a process group; a copy of the model begins its own.

    Attributes:
        context: of the group.
        number: of the model, in the order in which the ranks made them.
        buffers: of the module.
        fixed: checks what the engine cannot follow when the module changes.
        pace: measures the steps.
        synchronized: the layers whose forward waits for the other ranks in training mode.
        engine: DDP, where it averages the gradients.
        forwards: how many there were in which ranks meet.
        is_armed: whether the engine will reduce the next backward pass, whichever that is.
        joining: whether a loop in `join` is under way.
        last: the exchange of the last forward in that loop.
        row_of: one row of arguments, with a target and without.
        arriving: buffers on their way.
        sent_in: the backward pass in which they were sent.
        accumulation: of gradients, if the model was spread with `accumulate`.
    """

    context: Context
    number: int
    buffers: Buffers
    fixed: FixedParameters
    pace: Pace
    synchronized: list[torch.nn.SyncBatchNorm]
    engine: DistributedDataParallel | None = None
    forwards: int = 0
    is_armed: bool = False
    joining: bool = False
    last: Exchange | None = None
    row_of: dict[bool, Any] = field(default_factory=dict)
    arriving: Broadcast | None = None
    sent_in: int = -1
    accumulation: Accumulation | None = None


class RankModule(TransparentModule):
    """Calls a module with this rank's rows, so that a step is that of all ranks' rows together.

    ::

        forward    rows ─▶ module ─▶ outputs           of this rank alone
        backward   ranks meet, exchange rows           the outputs' gradients are weighted by them
                   buffers of one rank go to all       while gradients are computed

    The engine that averages gradients over the ranks is a subclass's: DDP or FSDP2. Ranks meet in
    the forward only where it has collectives: for the loss of the global batch, for shards, and for
    synchronized batch norm in training mode.

    Attributes:
        module: the module, on this rank's device.
    """

    _layout: Layout
    _loss: Criterion | None
    _device: torch.device
    _reduces: bool
    # None in a copy that has not been called yet.
    _run: Run | None

    def __init__(self, module: torch.nn.Module, layout: Layout, loss: Criterion | None) -> None:
        if loss is not None:
            _require_no_parameters(loss)
            layout = replace(layout, loss=explain_loss(loss))
        super().__init__(module)
        self.__dict__.update(_layout=layout, _loss=loss, _device=layout.lead, _reduces=True)
        self.__dict__["_run"] = None
        self._start()

    def _start(self) -> Run:
        """Meet the other ranks; each does so at the same time."""
        if current_group() is None:
            raise SpreadError(
                f"this {type(self.module).__name__} was spread over a process group, and this "
                "process is in none; use its attribute module, or start with anyrig run"
            )
        context = current_context()
        open_carrier(context)
        context.counts["models"] += 1
        run = self._run = Run(
            context,
            number=context.counts["models"],
            buffers=Buffers(self.module),
            fixed=self._fix_parameters(),
            pace=Pace(self._device, context),
            synchronized=[
                layer
                for layer in self.module.modules()
                if isinstance(layer, torch.nn.SyncBatchNorm)
            ],
            accumulation=Accumulation(self.module) if self._layout.accumulate else None,
        )
        return run

    def _has_collectives(self, run: Run) -> bool:
        """Return whether the module's own forward waits for the other ranks."""
        return any(layer.training for layer in run.synchronized)

    def _meets_at_loss(self, run: Run, loss: Criterion | None) -> bool:
        """Return whether the ranks of a forward need not meet before they have the loss.

        On the CPU its numbers then travel with those of the meeting: one wait fewer a step.
        """
        if loss is None or self._device.type != "cpu":
            return False
        return not (run.joining or self._has_collectives(run))

    @abstractmethod
    def _fix_parameters(self) -> FixedParameters:
        """Return the check of what the engine cannot follow when the module changes."""

    @abstractmethod
    def _compute(self, *inputs: Any, **kwargs: Any) -> Any:
        """Return the outputs, from which the subclass's engine reduces gradients."""

    @abstractmethod
    def _begin_backward(self, reduces: bool) -> None:
        """Prepare the engine, if that is left to be done when a backward pass begins."""

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module with the rows of this rank, and return its outputs for them.

        Args:
            inputs: as the module takes them, anywhere; the first tensor's rows are counted, or the
                entries of a list of dicts.
            kwargs: the same. If the model was spread with a loss, ``target=`` is the loss's, and
                the loss of the global batch is returned, on every rank.

        Raises:
            SpreadError: the outputs cannot be weighted; or parameters were added or replaced, or
                some were frozen or unfrozen, after the module was spread, and the engine cannot
                follow that.
        """
        if torch.compiler.is_compiling():
            leave_to_modules()
        loss = loss_for_target(self.module, self._loss) if "target" in kwargs else None
        self._take_buffers()
        try:
            with self._layout.computing():
                call = self._learn if torch.is_grad_enabled() else self._evaluate
                return call(inputs, kwargs, loss)
        except TypeError as error:
            if self._loss is not None:
                explain_call(error, self.module, inputs, kwargs)
            raise

    def _evaluate(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], loss: Criterion | None
    ) -> Any:
        inputs, kwargs, rows = self._bring(inputs, kwargs, None)
        target = kwargs.pop("target") if loss is not None else None
        exchange = self._new_exchange(rows, loss)
        if exchange.forward:  # ranks meet in the forward
            exchange.start(Phase.FORWARD, learns=False)
            exchange.finish()
        output = self._compute_rows(self.module, inputs, kwargs, rows, loss is not None)
        if loss is None:
            return output
        return whole_loss(loss, output, target, self._device, exchange, lambda: None)

    def _learn(
        self,
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        loss: Criterion | None,
        exchange: Exchange | None = None,
    ) -> Any:
        reduces, has_left = self._reduces, exchange is not None
        run = self._run or self._start()
        joining = run.joining
        if exchange is None:
            exchange = self._new_exchange(0, loss)
        if reduces:
            run.fixed.require_unchanged()
        inputs, kwargs, rows = self._bring(inputs, kwargs, exchange)
        moves_buffers = self.module.training and reduces and bool(run.buffers)
        if not has_left:
            exchange.samples = rows
            exchange.time = run.pace.start(rows)
            exchange.is_armed = run.is_armed
            if exchange.forward and not self._meets_at_loss(run, loss):
                exchange.start(Phase.FORWARD)
        if joining:
            run.last = exchange
        if rows and (loss is not None) not in run.row_of:
            run.row_of[loss is not None] = first_samples((inputs, kwargs), 1, self._layout.dim)

        accumulate = run.accumulation.follow(loss is not None) if run.accumulation else None
        if accumulate is not None and count_arguments(inputs, kwargs, self._layout.dim) is None:
            raise no_count()

        def begin() -> None:
            if not joining:  # else a rank that has left would have to come here, too
                exchange.is_armed = run.is_armed
                exchange.meet(Phase.BACKWARD)
            self._begin_backward(exchange.reduces)
            if accumulate is not None:
                accumulate(exchange.total_samples if loss is None else exchange.divisor)
            if moves_buffers:
                self._send_buffers(run, exchange)
            if (time := exchange.time) is not None:
                queue_callback(lambda: run.pace.stop(time))

        target = kwargs.pop("target") if loss is not None else None
        if self._has_collectives(run):
            exchange.finish()
        output = self._compute_rows(self._compute, inputs, kwargs, rows, loss is not None)
        if loss is None:
            return put_weight_on(output, exchange, begin)
        whole = whole_loss(loss, output, target, self._device, exchange, begin)
        if accumulate is not None and exchange.divisor is None:
            raise no_count()
        return whole

    def _new_exchange(self, rows: int, loss: Criterion | None) -> Exchange:
        run = self._run or self._start()
        meets = loss is not None or run.joining or self._has_collectives(run)
        if meets:
            run.forwards += 1
        return Exchange(
            run.context,
            run.number,
            rows,
            own_loss=loss is not None,
            own_reduces=self._reduces,
            forward=run.forwards if meets else 0,
        )

    def _compute_rows(
        self,
        module: Callable[..., Any],
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        rows: int,
        with_loss: bool,
    ) -> Any:
        if rows:
            try:
                return module(*inputs, **kwargs)
            except ValueError as error:
                explain_single_sample(error)
                raise
        return compute_without_samples(
            self.module,
            lambda given: module(*given[0], **given[1]),
            (inputs, kwargs),
            (self._run or self._start()).row_of.get(with_loss),
            self._layout.dim,
        )

    def _bring(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], exchange: Exchange | None
    ) -> tuple[tuple[Any, ...], dict[str, Any], int]:
        """Return the arguments on this rank's device, and how many rows they have."""
        # All there is between the caller and the module, so written for speed.
        device, dim = self._device, self._layout.dim
        rows = None
        simple = True
        for value in (*inputs, *kwargs.values()) if kwargs else inputs:
            kind = type(value)
            if kind is Tensor:
                if rows is None and value.dim():
                    rows = value.size(dim)
                if value.device != device or (exchange is not None and value.requires_grad):
                    simple = False
            elif kind not in ATOM_TYPES:
                simple, rows = False, None
                break
        if simple:
            return inputs, kwargs, 1 if rows is None else rows
        if rows is None:
            rows = count_listed((inputs, kwargs))
        if rows is None:
            rows = find_sample_count((inputs, kwargs), dim)

        def bring(leaf: Any, path: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            here = leaf.to(device, non_blocking=device.type != "cpu")
            weighted = exchange is not None and here.requires_grad
            return take_weight_off(here, exchange) if exchange and weighted else here

        inputs, kwargs = map_leaves((inputs, kwargs), bring)
        return inputs, kwargs, 1 if rows is None else rows

    def scattered(self, *inputs: Any, **kwargs: Any) -> list[Any]:
        """Call the model and return a list with this rank's output, as `DataParallel.scattered`
        returns one with the output of each device.

        Raises:
            TypeError: ``target=`` was given for the loss that the model was spread with.
            Exception: as `forward`.
        """
        if "target" in kwargs and self._loss is not None:
            raise TypeError(
                "scattered() returns outputs, and target= asks for the loss of the batch; call "
                "model(x, target=y), or give the outputs and y to anyrig.ParallelLoss"
            )
        refuse_with_accumulate(self._layout.accumulate, "scattered()", "take loss=")
        return [self(*inputs, **kwargs)]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let this rank's gradients add up in the backward passes of the forwards within.

        ::

            with model.no_sync():
                for x, y in micro_batches[:-1]:
                    criterion(model(x), y).backward()
            criterion(model(micro_batches[-1].x), micro_batches[-1].y).backward()   # reduces all

        Do not clip, step or zero gradients in between. All ranks do this alike; how many rows each
        micro-batch has may differ.
        """
        refuse_with_accumulate(self._layout.accumulate, "no_sync()")
        before, self._reduces = self._reduces, False
        try:
            yield
        finally:
            self._reduces = before

    def refresh(self) -> None:
        """Do nothing: each rank computes with the module itself. The replicas of one process need
        it, and one script serves both.
        """

    @abstractmethod
    def join(self) -> AbstractContextManager[None]:
        """Let ranks have different numbers of batches in the loop within.

        What `spread` returned decides what it does:

        * over replicas, one on each rank (`DistributedModule`): a rank that has run out computes
          along with the others, without rows;
        * in shards (`ShardedModule`): raises SpreadError, which names `anyrig.distribute`;
        * in one process (`DataParallel`): nothing, as there is no other rank to wait for.

        Raises:
            SpreadError: the model is in shards.
        """

    def _send_buffers(self, run: Run, exchange: Exchange) -> None:
        """Begin to give all ranks the same buffers, once in a backward pass; they change after it.

        The number of the pass is private, but PyTorch's own FSDP2 asks for it.
        """
        backward = torch._C._current_graph_task_id()
        if run.arriving is not None:
            if run.sent_in == backward:
                return
            self._take_buffers()  # of a backward pass that failed on this rank
        run.sent_in = backward
        run.arriving = run.buffers.send(exchange.first_with_samples)
        queue_callback(self._take_buffers)

    def _take_buffers(self) -> None:
        run = self._run
        if run is not None and run.arriving is not None:
            arriving, run.arriving = run.arriving, None
            arriving.finish()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's state as its engine has it: no prefix."""
        self._take_buffers()
        return super().state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        self._take_buffers()
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_run": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.module!r})"


def _require_no_parameters(loss: Criterion) -> None:
    if isinstance(loss, torch.nn.Module) and any(p.requires_grad for p in loss.parameters()):
        raise SpreadError(
            f"the loss {type(loss).__name__} has parameters to learn, and only the module's are "
            "averaged over the ranks; make it a part of the module that is spread"
        )
