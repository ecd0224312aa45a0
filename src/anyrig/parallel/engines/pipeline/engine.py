"""A pipeline in one process, which drives all devices."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ....transfer.tree import list_leaves
from ...compiling import refuse_pipeline
from ...layout import Layout
from ...losses.even_means import targets_of
from ...losses.loss import Criterion, PartLoss, criterion_on
from ...losses.loss_part import LossPart
from ...losses.own_loss import HalvesCheck
from ...losses.same_by_halves import NOTHING, Differences, find_differences
from ...losses.whole import combine_counts, combine_losses
from ...parts.call import without_trace
from ...plans import Pipeline
from .chain import Chain
from .graph_run import run_with_graph
from .held_tensors import list_held
from .micro_batches import MicroBatch, MicroBatches, cut_call, cut_evenly
from .placement import PlacedPipeline, forward_order, make_stages
from .scheduled_run import ScheduledRun
from .schedules.schedule import Task
from .split.chain_of import chain_of
from .staged_engine import GivenCall, StagedEngine
from .step import compute_loss
from .written_buffers import BufferWatch


class PipelineEngine(StagedEngine):
    """Computes neighbouring layers on each device, and batches in micro-batches.

    ::

        model = anyrig.spread(Net(), plan=anyrig.Pipeline(), loss=nn.CrossEntropyLoss())
        loss = model(x, target=y)   # forward and backward passes of all micro-batches
        loss.backward()             # delivers the gradients

    Parameters stay the module's own objects, on the devices of their stages. Loss, outputs and
    gradients are those of the whole batch on one device.

    Args:
        module: moved in place, part by part.
        layout: how the module is spread, and why.
        loss: see `anyrig.spread`.
        plan: see `anyrig.Pipeline`.
        micro_batches: the number of micro-batches, and why.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        layout: Layout,
        loss: Criterion | None,
        plan: Pipeline,
        micro_batches: MicroBatches,
        pipeline: PlacedPipeline,
    ) -> None:
        super().__init__(module, layout, loss, plan, micro_batches)
        self._start(pipeline)

    def _start(self, pipeline: PlacedPipeline) -> None:
        self._pipeline = pipeline
        self._orders: dict[tuple[str, int], tuple[Task, ...] | None] = {}
        self._has_run = False  # whether a scheduled step has run, and found nothing to refuse
        self._lock = threading.Lock()
        self._begin()

    def forward(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the micro-batches of a batch, and return the whole batch's output or loss."""
        if torch.compiler.is_compiling():
            devices = {stage.device for stage in self._pipeline.stages}
            refuse_pipeline(type(self.module).__name__, len(devices))
        with self._lock:
            return self._compute(inputs, kwargs)

    @property
    def _chain(self) -> Chain:
        return self._pipeline.chain

    def _call_watched(self, watch: BufferWatch, number: int, given: GivenCall) -> Any:
        try:
            return self._call_in_parts(number, given)
        except Exception:
            # A buffer that changes between micro-batches may fail their backward passes.
            if watch.find_written() is None:
                raise

    def _call_in_parts(self, number: int, given: GivenCall) -> Any:
        loss, inputs, kwargs = given.loss, given.inputs, given.kwargs
        parts, is_divided = cut_evenly(
            inputs, kwargs, given.target, number, self.layout.dim, given.samples
        )
        targets: list[torch.Tensor] = []

        def note(count: torch.Tensor) -> tuple[torch.Tensor, float]:
            targets.append(count)
            return count, 1.0

        add_up = None if self._accumulation is None else note
        bound = self._chain.bind_parts(inputs, kwargs, parts, add_up)
        differences = self._compare_halves(parts, loss)
        if loss is not None:
            differences.refuse_any()
            return self._compute_loss(loss, parts, bound, is_divided, targets)
        outputs = self._run_with_graph(parts, bound, None)
        differences.refuse(outputs[0])
        samples = [part.samples for part in parts]
        joined = self._join(
            outputs,
            parts,
            inputs,
            kwargs,
            lambda count: self._call_once_more(inputs, kwargs, count, sum(samples)),
        )
        return self._note_backward(joined, sum(samples) if is_divided else None, False, targets)

    def _compute_loss(
        self,
        loss: Criterion,
        parts: Sequence[MicroBatch],
        bound: Sequence[dict[str, Any]],
        is_divided: bool,
        targets: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        layout = self.layout
        order = self._order_of(self._table.schedule.name, len(parts))
        # Without samples, autograd computes the gradients of 0 / 0, as it does on one device.
        has_samples = any(part.samples for part in parts)
        if order is None or not has_samples or not self._learns(parts):
            losses: list[LossPart] = self._run_with_graph(parts, bound, loss)
            whole = combine_losses(losses, layout.output_device, layout.dim)
        else:
            run = self._scheduled_run(loss, parts, bound, order)
            whole, losses = compute_loss(run, layout.output_device, layout.dim)
            self._has_run = True
        count = combine_counts(losses, layout.output_device) if is_divided else None
        targets = [*targets, *targets_of(losses)]
        noted: torch.Tensor = self._note_backward(whole, count, True, targets)
        return noted

    def _scheduled_run(
        self,
        loss: Criterion,
        parts: Sequence[MicroBatch],
        bound: Sequence[dict[str, Any]],
        order: Sequence[Task],
    ) -> ScheduledRun:
        chain, stages = self._pipeline.chain, self._pipeline.stages
        loss_of = self._loss_of(loss, parts)
        return ScheduledRun(
            chain,
            stages,
            order,
            parts,
            loss_of,
            self._recomputes(parts),
            list_held(stages),
            bound,
            not self._has_run,
        )

    def _loss_of(self, loss: Criterion, parts: Sequence[MicroBatch]) -> PartLoss:
        is_first = len(parts) > 1 and self._checked.note_loss(parts[0].samples)
        check = HalvesCheck(self.layout.dim) if is_first else None
        return PartLoss(criterion_on(loss, self._pipeline.stages[-1].device), check)

    def _run_with_graph(
        self,
        parts: Sequence[MicroBatch],
        bound: Sequence[dict[str, Any]],
        loss: Criterion | None,
    ) -> list[Any]:
        stages = self._pipeline.stages
        loss_of = None if loss is None else self._loss_of(loss, parts)

        def finish(output: Any, target: Any, samples: int) -> Any:
            return output if loss_of is None else loss_of(output, target, samples)

        return run_with_graph(
            self._pipeline.chain,
            stages,
            forward_order(len(stages), len(parts)),
            parts,
            bound,
            finish,
            self._recomputes(parts),
        )

    def _order_of(self, name: str, micro_batches: int) -> tuple[Task, ...] | None:
        """Return the order of a schedule's tasks; None if autograd finds the order."""
        if (name, micro_batches) not in self._orders:
            self._orders[name, micro_batches] = self._pipeline.order_of(name, micro_batches)
        return self._orders[name, micro_batches]

    def _learns(self, parts: Sequence[MicroBatch]) -> bool:
        if not torch.is_grad_enabled():
            return False
        return any(parameter.requires_grad for parameter in self.module.parameters()) or any(
            isinstance(leaf, torch.Tensor) and leaf.requires_grad
            for part in parts
            for leaf, _ in list_leaves((part.args, dict(part.kwargs)))
        )

    def _call_once_more(
        self, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int, of: int
    ) -> Any:
        """Return the module's output for the first samples of a batch, without side effects."""
        with without_trace([self.module], self._devices):
            counts = samples, of - samples
            parts, _ = cut_call(inputs, kwargs, None, lambda _: counts, self.layout.dim)
            bound = [self._chain.bind(parts[0].args, parts[0].kwargs)]
            return self._run_with_graph(parts[:1], bound, None)[0]

    def _compare_halves(self, parts: Sequence[MicroBatch], loss: Criterion | None) -> Differences:
        """In a first call, return what does not follow from the halves of a micro-batch."""
        part = parts[0]
        if len(parts) < 2 or not self._checked.note_halves(part.kwargs, part.samples):
            return NOTHING

        def compute(number: int) -> tuple[list[int], list[Any]]:
            args, kwargs, dim = part.args, dict(part.kwargs), self.layout.dim
            cut, _ = cut_evenly(args, kwargs, None, number, dim, part.samples)
            bound = self._chain.bind_parts(args, kwargs, cut)
            return [each.samples for each in cut], self._run_with_graph(cut, bound, None)

        learns = torch.is_grad_enabled() and loss is None
        whole = "With Pipeline(micro_batches=1) they are those of the whole batch"
        return find_differences(self.module, compute, self._devices, whole, numbers=learns)

    @property
    def _devices(self) -> list[torch.device]:
        return list(dict.fromkeys(stage.device for stage in self._pipeline.stages))

    def _note_backward(
        self, output: Any, count: Any, by_loss: bool, targets: Sequence[torch.Tensor]
    ) -> Any:
        if self._accumulation is None:
            return output
        return self._accumulation.note(output, count, by_loss, targets)

    def __getstate__(self) -> dict[str, Any]:
        # `_start` makes these again in the process that unpickles the model.
        made_again = {
            "_pipeline",
            "_known_dimensions",
            "_orders",
            "_has_run",
            "_checked_modes",
            "_whole",
            "_lock",
            "_accumulation",
        }
        state = {name: value for name, value in vars(self).items() if name not in made_again}
        return {**state, "_sizes": [len(stage.blocks) for stage in self._pipeline.stages]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        sizes = state.pop("_sizes")
        vars(self).update(state)
        devices = [stage.device for stage in self._table.stages]
        chain = chain_of(
            self.module,
            self._plan.split_points,
            example=self._plan.example,
            device=devices[0],
            dim=self.layout.dim,
        )
        self._start(make_stages(chain, devices, sizes))
