"""A pipeline over the ranks of a group.

More than 400 lines: what all calls of a model share, from agreement to end, is in one class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from .....errors import ShardSaveError, SpreadError
from .....processes.time_limit import limit_or_default
from .....transfer.move import Mover
from .....transfer.tree import map_leaves
from ....accumulation import refuse_with_accumulate
from ....compiling import leave_to_modules
from ....layout import Layout
from ....losses.loss import Criterion, PartLoss, criterion_on
from ....losses.means_of_parts import AddUp
from ....losses.own_loss import HalvesCheck
from ....notes import add_note
from ....parts.call import without_trace
from ....plans import Pipeline
from ....ranks.counted_targets import counted_over_ranks
from ....ranks.exchange import Exchange
from ..chain import Chain
from ..micro_batches import MicroBatch, MicroBatches, cut_call, cut_evenly
from ..schedules.named import make_schedule
from ..schedules.schedule import Schedule, Task, Work
from ..schedules.timeline import issue_order
from ..stage import tensors_of
from ..staged_engine import GivenCall, StagedEngine
from ..written_buffers import BufferWatch
from .agreement import Agreement
from .elsewhere import Elsewhere
from .elsewhere_gradients import norm_over_ranks
from .rank_calls import (
    RankCall,
    StepAhead,
    StepLater,
    evaluate,
    fingerprint,
    only,
    shapes_of,
)
from .rank_pipeline import Known, RankPipeline
from .row import Row


class RankPipelineEngine(StagedEngine):
    """Computes neighbouring layers on each rank of a group, and batches in micro-batches.

    ::

        model = anyrig.spread(Net(), plan=anyrig.Pipeline(), loss=nn.CrossEntropyLoss())
        loader = anyrig.distribute(loader)      # the same batch on each rank of a pipeline
        for x, y in loader:
            loss = model(x, target=y)           # the loss of the global batch on every rank
            loss.backward()
            optimizer.step(); optimizer.zero_grad()

    Every rank calls the model with the same batch: the rank of the first stage uses the arguments,
    and the rank of the last stage uses the target. Every rank gets the loss, or the outputs.
    Parameters of other ranks' stages are replaced by tensors without values (`Elsewhere`), so names
    and order are those of one device.

    Args:
        module: the module, with other ranks' parameters replaced.
        layout: how the module is spread, and why.
        loss: see `anyrig.spread`.
        plan: see `anyrig.Pipeline`.
        micro_batches: the number of micro-batches, and why.
        pipeline: the model's state in the group.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        layout: Layout,
        loss: Criterion | None,
        plan: Pipeline,
        micro_batches: MicroBatches,
        pipeline: RankPipeline,
    ) -> None:
        super().__init__(module, layout, loss, plan, micro_batches)
        self._pipeline = pipeline
        self._schedules: dict[tuple[str, int], Schedule | None] = {}
        self._tasks: dict[tuple[str, int], list[list[Task]]] = {}
        self._begin()

    @property
    def _pipelines(self) -> int:
        return self.pipeline_row.count

    @property
    def pipeline_row(self) -> Row:
        """The ranks of this rank's pipeline."""
        return self._pipeline.links.row

    def forward(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the micro-batches of a batch; return the loss, or the outputs, on every rank."""
        if torch.compiler.is_compiling():
            leave_to_modules()
        if self._pipeline.failed:
            raise SpreadError(
                "a call of this model has failed, and other ranks may still send its messages; "
                "start the ranks again, for example with anyrig run --max-restarts"
            )
        return self._compute(inputs, kwargs)

    @property
    def _chain(self) -> Chain:
        return self._pipeline.stages.pipeline.chain

    def _find_written(self, watch: BufferWatch) -> str | None:
        """Return a description of a buffer that any rank's forward pass has written, or None."""
        board = self._pipeline.links.board
        own = (watch.find_written() or "").encode()
        what = "the first call of a model in stages"
        found = board.exchange("buffers", own, limit_or_default(None), what)
        return next((text.decode() for text in found if text), None)

    def _call_in_parts(self, number: int, given: GivenCall) -> Any:
        layout, alone = self.layout, self._pipelines == 1
        loss, inputs, kwargs = given.loss, given.inputs, given.kwargs
        parts, is_divided = cut_evenly(
            inputs, kwargs, given.target, number, layout.dim, given.samples, alone
        )
        samples = sum(part.samples for part in parts)
        pipeline = self._pipeline
        layers = list(self.module.modules())
        parameters = _parameters_of(layers)
        key = self._key(parts, loss is not None, layers, parameters)
        agreement = self._announce(samples, key, loss is not None)
        if number == 1 or self.module.training not in self._checked_modes:
            agreement.reach()  # as a refused call must not have written buffers
        targets: list[Tensor] = []
        counts = self._accumulation is not None or not alone
        add_up = self._add_up(agreement, targets) if counts else None
        bound = self._chain.bind_parts(inputs, kwargs, parts, add_up)
        call = RankCall(
            pipeline,
            agreement,
            pipeline.known_for(key),
            parts,
            bound,
            samples,
            self._loss_of(loss, parts),
            lambda outputs, once_more: self._join(outputs, parts, inputs, kwargs, once_more),
            lambda count: self._cut(inputs, kwargs, count, samples),
            self._tasks_of("forward", 1),
            lambda: without_trace([self.module], [layout.lead]),
            self._recomputes(parts),
            layout.lead,
            layout.dim,
            [tensor for tensor in pipeline.stages.tensors() if tensor.requires_grad],
            [each for each in parameters if isinstance(each, Elsewhere)],
            _learning(bound),
            self._has_half(parameters),
            self.module.training and pipeline.links.equals is not None,
            partial(self._failing, agreement),
        )
        with self._failing(agreement):
            output = self._compute_call(call)
        pipeline.has_run = True
        if self._accumulation is None or not torch.is_grad_enabled():
            return output
        count = agreement.total_samples if loss is None else call.divisor
        targets.extend(call.targets)
        return self._accumulation.note(
            output, count if is_divided else None, loss is not None, targets
        )

    def _add_up(self, agreement: Agreement, totals: list[Tensor]) -> AddUp:
        add_up = counted_over_ranks(agreement.exchange, totals, len(self.pipeline_row.ranks))

        def add_up_after_agreement(count: Tensor) -> tuple[Tensor, float]:
            agreement.reach()
            return add_up(count)

        return add_up_after_agreement

    def _compute_call(self, call: RankCall) -> Any:
        count = len(call.micro_batches)
        if not self._learns(call):
            return evaluate(call, self._tasks_of("forward", count))
        schedule = self._schedule_of(self._table.schedule.name, count)
        # Without samples, autograd computes the gradients of 0 / 0, as it does on one device.
        if call.loss_of is not None and schedule is not None and call.samples:
            ahead = StepAhead(call, schedule.tasks)
            return ahead.results()[0]
        tasks = self._tasks_of("gpipe", count)
        later = StepLater(call, only(Work.FORWARD, tasks), only(Work.BACKWARD, tasks))
        results = later.results()
        of_node = dict(zip(map(id, tensors_of(later.tree)), results, strict=True))
        return map_leaves(later.tree, lambda leaf, _: of_node.get(id(leaf), leaf))

    def _learns(self, call: RankCall) -> bool:
        if not torch.is_grad_enabled():
            return False
        return bool(call.arguments or call.parameters) or any(
            parameter.requires_grad for parameter in call.elsewhere
        )

    def _announce(self, samples: int, key: int, with_loss: bool) -> Agreement:
        pipeline = self._pipeline
        pipeline.forwards += 1
        exchange = Exchange(
            pipeline.context,
            pipeline.number,
            samples,
            own_loss=with_loss,
            forward=pipeline.forwards,
        )
        return Agreement(exchange, pipeline.links.row, key, self.module.training)

    def _key(
        self,
        parts: Sequence[MicroBatch],
        with_loss: bool,
        layers: Sequence[torch.nn.Module],
        parameters: Sequence[Tensor],
    ) -> int:
        """Return a number that is equal for calls whose messages have the same texts."""
        lead = self.layout.lead.type
        return fingerprint(
            [shapes_of((part.args, dict(part.kwargs))) for part in parts],
            with_loss,
            torch.is_grad_enabled(),
            torch.is_autocast_enabled(lead) and torch.get_autocast_dtype(lead),
            [layer.training for layer in layers],
            [parameter.requires_grad for parameter in parameters],
        )

    def _bring(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], target: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Return arguments and target, moved to this rank's device if its stages need them."""
        mover = Mover(self.layout.lead, non_blocking=True)
        places, here = self._pipeline.stages.traffic.device_of_stage, self._pipeline.stages.device
        if here == places[0]:
            inputs, kwargs = mover.map((inputs, kwargs))
        return inputs, kwargs, mover.map(target) if here == places[-1] else target

    def _loss_of(self, loss: Criterion | None, parts: Sequence[MicroBatch]) -> Any:
        if loss is None:
            return None
        layout, samples = self.layout, parts[0].samples
        is_first = (len(parts) > 1 or self._pipelines > 1) and self._checked.note_loss(samples)
        check = HalvesCheck(layout.dim, may_read_module=True) if is_first else None
        return PartLoss(criterion_on(loss, layout.lead), check)

    def _cut(
        self, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int, of: int
    ) -> tuple[tuple[Any, ...], Mapping[str, Any], Known]:
        """Return the arguments for the first samples, and what is known about such calls."""
        counts = samples, of - samples
        parts, _ = cut_call(inputs, kwargs, None, lambda _: counts, self.layout.dim)
        key = fingerprint("preview", shapes_of((parts[0].args, dict(parts[0].kwargs))))
        return parts[0].args, parts[0].kwargs, self._pipeline.known_for(key)

    def _tasks_of(self, name: str, micro_batches: int) -> list[list[Task]]:
        """Return each device's tasks of a schedule, in the order of `issue_order`."""
        key = name, micro_batches
        if key not in self._tasks:
            places = self._pipeline.stages.traffic.device_of_stage
            tasks: list[list[Task]] = [[] for _ in self._pipeline.links.row.ranks]
            for task in issue_order(make_schedule(name, len(places), micro_batches)):
                tasks[places[task.stage]].append(task)
            self._tasks[key] = tasks
        return self._tasks[key]

    def _schedule_of(self, name: str, micro_batches: int) -> Schedule | None:
        """Return the schedule of training steps; None if backward passes run later."""
        key = name, micro_batches
        if key not in self._schedules:
            self._schedules[key] = None
            devices = len(self._pipeline.links.row.ranks)
            stages = len(self._pipeline.stages.pipeline.stages)
            if name != "gpipe":
                with suppress(SpreadError):  # the schedule may not allow so few micro-batches
                    made = make_schedule(name, devices, micro_batches, stages // devices)
                    self._schedules[key] = made
        return self._schedules[key]

    def _has_half(self, parameters: Sequence[Tensor]) -> bool:
        half = torch.float16
        return self.layout.precision is half or any(
            parameter.dtype is half for parameter in parameters
        )

    @contextmanager
    def _failing(self, agreement: Agreement) -> Iterator[None]:
        """Report an error of this rank to the other ranks, which wait for it."""
        try:
            yield
        except Exception as error:
            if agreement.is_refused:
                raise
            row = self._pipeline.links.row
            add_note(error, f"on rank {row.ranks[row.place]} of a pipeline over ranks")
            self._pipeline.failed = True
            self._pipeline.links.fail(error)
            raise

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float, error_if_nonfinite: bool
    ) -> Tensor:
        """Clip the norm of the gradients of all ranks, and return it; every rank must call this.

        This is `torch.nn.utils.clip_grad_norm_`, which refuses the parameters of other ranks.
        """
        own = [each for each in self._pipeline.stages.tensors() if each.grad is not None]
        given = [each.grad for each in own if each.grad is not None]
        total = norm_over_ranks(given, norm_type, self._pipeline.links)
        if error_if_nonfinite and not total.isfinite():
            raise RuntimeError(f"the norm of order {norm_type} of the gradients is {float(total)}")
        torch.nn.utils.clip_grads_with_norm_(own, max_norm, total)
        return total

    @contextmanager
    def join(self) -> Iterator[None]:
        """Do nothing: the ranks of a pipeline get the same batches.

        Raises:
            SpreadError: there are several pipelines, whose numbers of batches may differ.
        """
        refuse_with_accumulate(self.layout.accumulate, "join()")
        if self._pipeline.links.equals is not None:
            raise SpreadError(
                "with replicas=, every pipeline takes part in each step, so none can end before "
                "the others; anyrig.distribute(loader) gives empty batches to a pipeline that has "
                "no further data"
            )
        yield

    def fit_state(self, state: Mapping[str, Any], assign: bool) -> Mapping[str, Any]:
        """Return the state of the whole module, of which this rank loads the tensors of its stages.

        A state dict from another rank has no values for this rank's stages, and is refused.
        """
        own = self.module.state_dict()
        for name, value in state.items():
            held = own.get(name)
            if (
                isinstance(value, Elsewhere)
                and not isinstance(held, Elsewhere)
                and held is not None
            ):
                raise SpreadError(
                    f"the state dict has no values for {name!r}, which was on rank "
                    f"{value.on_rank}; load a checkpoint of anyrig.save(), which is whole"
                )
        if assign:
            raise SpreadError(
                "assign=True would put the tensors of all stages on this rank; leave it out"
            )
        return state

    def refuse_pickle(self) -> NoReturn:
        """Raise ShardSaveError: one rank would save only its stages."""
        raise ShardSaveError(
            "this rank has only some stages of the model; anyrig.save(folder, model=model, "
            "optimizer=optimizer) on every rank saves the whole"
        )

    def refuse_copy(self) -> NoReturn:
        """Raise SpreadError: a copy would have no links with the other ranks."""
        raise SpreadError(
            "a model in stages on several ranks cannot be copied; copy the module, then spread each"
        )


def _learning(bound: Sequence[Mapping[str, Any]]) -> list[Tensor]:
    """Return the tensors in the values of the arguments that need gradients, each once."""
    if not torch.is_grad_enabled():
        return []
    found = {
        id(tensor): tensor
        for values in bound
        for value in values.values()
        for tensor in tensors_of(value)
        if tensor.requires_grad
    }
    return list(found.values())


def _parameters_of(layers: Sequence[torch.nn.Module]) -> list[Tensor]:
    """Return the parameters of layers without those of their children, each once, in order."""
    found = {id(p): p for layer in layers for p in layer._parameters.values() if p is not None}
    return list(found.values())
