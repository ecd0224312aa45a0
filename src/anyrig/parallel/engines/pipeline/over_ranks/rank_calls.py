"""The calls of a pipeline over ranks: with all backward passes at once, later, or without any.

More than 400 lines: the three kinds of calls share the messages between ranks and their errors.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .....errors import SpreadError
from .....transfer.tree import walk_leaves
from .....transfer.unreachable import tensors_within
from ....backward_callback import queue_callback
from ....losses.delivery import Delivery, deliver, scale
from ....losses.loss_part import LossPart
from ....losses.whole import combine_losses
from ....ranks.exchange import Phase
from ..micro_batches import MicroBatch
from ..schedules.schedule import Task, Work
from ..stage import Gradients, tensors_of
from .agreement import Agreement
from .elsewhere_gradients import mark_gradients
from .links import Links
from .office import Office
from .rank_pipeline import Known, RankPipeline
from .rank_run import RankRun
from .row_buffers import copy_over_rows
from .row_gradients import add_over_rows
from .row_loss import WholeLoss, begin_adding_losses

_RESULT, _PREVIEW = "result", "preview"
_HALF = (torch.float16, torch.bfloat16)


@dataclass
class RankCall:
    """One call on this rank.

    Attributes:
        pipeline: the model.
        agreement: the ranks' agreement that all make this call.
        known: what earlier calls like this one have shown.
        micro_batches: the arguments.
        bound: the values of the arguments.
        samples: the number of samples that this pipeline has.
        loss_of: computes the loss of a micro-batch; None without a loss.
        join: joins the outputs of the micro-batches, and may call a function that returns the
            outputs for the first samples of the batch.
        cut: returns the arguments for the first samples, and what is known about such calls.
        preview_tasks: the tasks of a forward pass of one micro-batch, by device.
        without_trace: returns a context in which calls of the module have no side effects.
        recomputes: see `RankRun`.
        device: the device of this rank.
        dim: the dimension of the samples.
        parameters: the tensors of this rank that learn.
        elsewhere: the parameters of other ranks that learn.
        arguments: the tensors of `bound` that need gradients.
        watches_overflow: whether a gradient that overflows on one rank must be seen on all.
        failing: returns the context in which a failure is told to the other ranks.
        copies_buffers: whether all pipelines take the buffers of one after the backward pass.
    """

    pipeline: RankPipeline
    agreement: Agreement
    known: Known
    micro_batches: Sequence[MicroBatch]
    bound: Sequence[dict[str, Any]]
    samples: int
    loss_of: Callable[[Any, Any, int], LossPart] | None
    join: Callable[[list[Any], Callable[[int], Any]], Any]
    cut: Callable[[int], tuple[tuple[Any, ...], Mapping[str, Any], Known]]
    preview_tasks: Sequence[Sequence[Task]]
    without_trace: Callable[[], AbstractContextManager[None]]
    recomputes: Callable[[int], bool]
    device: torch.device
    dim: int
    parameters: Sequence[Tensor]
    elsewhere: Sequence[Tensor]
    arguments: Sequence[Tensor]
    watches_overflow: bool
    copies_buffers: bool
    failing: Callable[[], AbstractContextManager[None]]

    def __post_init__(self) -> None:
        self._parts: dict[int, LossPart] = {}
        row = self.pipeline.links.row
        self.is_last = row.place == self.pipeline.stages.traffic.device_of_stage[-1]
        self.divisor: Tensor | None = None  # of the loss, once it was computed
        self.targets: Sequence[Tensor] = ()  # see `WholeLoss`
        # Beside other pipelines, no samples have no loss, and their gradients count for nothing.
        self.is_empty = not self.samples and self.pipeline.links.equals is not None
        self._passes_before = self.pipeline.passes

    @property
    def weight(self) -> float:
        """The part of the global batch's samples that this pipeline has."""
        total = self.agreement.total_samples
        return self.samples / total if total else 0.0

    def agree(self) -> None:
        """Wait until all ranks are known to make this call; raise as `Agreement.reach` does."""
        try:
            self.agreement.reach()
        except Exception:
            self.pipeline.passes = self._passes_before  # nothing was sent
            raise

    def office(self, tasks: Sequence[Sequence[Task]], lends: bool) -> Office:
        """Return the office for the tasks of all devices."""
        return self.pipeline.office(tasks, lends, self.known, self.agree)

    def run(self, learns: bool) -> RankRun:
        """Return a runner for this rank's tasks."""
        return RankRun(
            self.pipeline.stages,
            self.bound,
            self._finish,
            self.recomputes,
            len(self.micro_batches),
            learns,
            not self.pipeline.has_run,
        )

    def _finish(self, number: int, made: dict[str, Any]) -> dict[str, Any]:
        output = self.pipeline.stages.pipeline.chain.build(made)
        if self.loss_of is None:
            return {_RESULT: output}
        given = self.micro_batches[number]
        part = self.loss_of(output, given.target, given.samples)
        self._parts[number] = part.detach()
        return {_RESULT: part.value}

    def parts(self, run: RankRun) -> list[LossPart]:
        """Return the losses on the rank of the last stage, as leaves; else an empty list."""
        return [
            replace(part, value=run.results[number][_RESULT])
            for number, part in sorted(self._parts.items())
        ]

    def begin_whole_loss(
        self, run: RankRun | None, divided_by: float = 1.0
    ) -> Callable[[], WholeLoss]:
        """Give this rank's losses to the other ranks; every rank must call this.

        `divided_by` is what the gradients are already divided by. Return a function that waits for
        the loss of the global batch.
        """
        self.agree()
        parts = [] if run is None else self.parts(run)
        links = self.pipeline.links
        wait = begin_adding_losses(parts, self.device, self.known.loss, links, divided_by)

        def finish() -> WholeLoss:
            whole = wait()
            self.divisor = whole.divisor if whole.kind.reduced else None
            self.targets = whole.targets
            return whole

        return finish

    def expected_divisor(self) -> float:
        """Return what the loss will be divided by if all samples count as the first ones do.

        Return 1 where that would not save time, or is not known to all ranks.
        """
        part = self._parts[min(self._parts)]
        first = self.micro_batches[min(self._parts)].samples
        if (
            self.device.type != "cpu"
            or self.pipeline.links.equals is not None
            or part.count is None
            or not part.reduced
            or part.dtype in _HALF
        ):
            return 1.0
        return float(part.count) * self.samples / first or 1.0

    def results_of(self, run: RankRun, device: int) -> Any:
        """Return on every rank what the last stage's rank computed; on that rank, with a graph."""
        self.agree()
        share, what = self.pipeline.share, "the output of the model"
        if self.is_last:
            with torch.set_grad_enabled(run.learns):
                if self.loss_of is None:
                    joined = self.join(
                        [run.results[n][_RESULT] for n in sorted(run.results)],
                        lambda samples: self.preview(share({_PREVIEW: samples}, device, what)),
                    )
                else:
                    joined = combine_losses(self.parts(run), self.device, self.dim)
            return share({_RESULT: joined}, device, what)[_RESULT]
        # To join its outputs, the rank of the last stage may first need those for some samples.
        while _RESULT not in (shared := share(None, device, what)):
            self.preview(shared)
        return shared[_RESULT]

    def preview(self, shared: dict[str, Any]) -> Any:
        """Return the outputs for the first samples, on the rank of the last stage."""
        args, kwargs, known = self.cut(shared[_PREVIEW])
        pipeline = self.pipeline
        chain = pipeline.stages.pipeline.chain
        run = RankRun(
            pipeline.stages,
            [chain.bind(args, kwargs)],
            lambda number, made: {_RESULT: chain.build(made)},
            lambda number: False,
            1,
            learns=False,
            checks=False,
        )
        office = pipeline.office(self.preview_tasks, True, known, self.agree)
        with self.without_trace():
            run.borrow(office)
            run.run(office, self.preview_tasks[pipeline.stages.device], _no_seeds)
        pipeline.links.finish_sending()
        return run.results[0][_RESULT] if run.results else None

    def deliver(
        self,
        found: dict[Tensor, Tensor],
        arguments: Sequence[Tensor | None],
        factor: Any,
        keeps: bool,
    ) -> list[Tensor | None]:
        """Return gradients of parameters, times a factor, over all pipelines, and `arguments`.

        Unless `keeps`, the gradients in `found` become the returned ones, and `found` empty.
        """
        gradients = [found.get(parameter) for parameter in self.parameters]
        gradients = scale(gradients, factor, in_place=not keeps)
        if not keeps:
            found.clear()  # or autograd would copy the gradients, which nothing else may hold
        links = self.pipeline.links
        if links.equals is not None:
            gradients = add_over_rows(self.parameters, gradients, links)
        queue_callback(lambda: mark_gradients(self.elsewhere, self.parameters))
        if self.copies_buffers:  # when no graph of this backward pass needs the buffers any more
            source = self.agreement.first_row_with_samples
            queue_callback(lambda: copy_over_rows(self.pipeline.stages.buffers(), source, links))
        if self.watches_overflow:
            spread_overflow(gradients, self.device, links)
        return [None, *gradients, *arguments]  # the first is the anchor's

    def argument_gradients(self, run: RankRun, office: Office) -> list[Tensor | None]:
        """Return the gradients of the arguments, which the rank of the first stage has."""
        if not self.arguments:
            return []
        given: list[Gradients] = []
        if self.pipeline.links.row.place == self.pipeline.stages.traffic.device_of_stage[0]:
            given = run.argument_gradients(office)
        what = "the gradients of arguments"
        given = self.pipeline.share(given, self.pipeline.stages.traffic.device_of_stage[0], what)
        found: dict[Tensor, Tensor] = {}
        for bound, gradients in zip(self.bound, given, strict=True):
            for name, value in bound.items():
                for tensor, gradient in zip(tensors_of(value), gradients[name], strict=False):
                    if gradient is not None:
                        before = found.get(tensor)
                        found[tensor] = gradient if before is None else before + gradient
        returned = [found.get(tensor) for tensor in self.arguments]
        return [
            None if gradient is None else gradient.to(tensor.device)
            for tensor, gradient in zip(self.arguments, returned, strict=True)
        ]


class _OverRanks(Delivery):
    """A node of the graph on every rank, through which every rank takes part in a backward pass.

    ::

                       model(x, target=y)                    loss.backward()
        1f1b and so on all tasks; gradients of the sum       gradients x upstream,
                       of the losses / expected count        x expected count / count
        gpipe, outputs all forward tasks                     all backward tasks
    """

    no_graph = (
        "create_graph=True is impossible in a pipeline over ranks, as other ranks have parts of "
        "the graph; use one process for several devices, with schedule='gpipe'"
    )

    def __init__(self, call: RankCall) -> None:
        self._call = call

    def delivering(self) -> AbstractContextManager[None]:
        return self._call.failing()

    def results(self) -> list[Tensor]:
        """Return the results as a part of the caller's graph."""
        # The anchor makes them need gradients even on a rank that has nothing to learn.
        anchor = torch.zeros((), requires_grad=True, device="cpu")
        return deliver(self, [anchor, *self._call.parameters, *self._call.arguments])


class StepAhead(_OverRanks):
    """All tasks of a schedule in the call; `backward` delivers the gradients.

    The gradients are those of the sum of the losses, divided by the expected divisor of the mean:
    the actual divisor is known only when all targets have been counted. If the two are equal, the
    gradients need not be divided again.
    """

    def __init__(self, call: RankCall, tasks: Sequence[Sequence[Task]]) -> None:
        super().__init__(call)
        self._tasks = tasks
        self._divided_by: float | None = None
        self._found: dict[Tensor, Tensor] = {}
        self._arguments: list[Tensor | None] = []

    def forward(self) -> tuple[list[Tensor], list[bool]]:
        """Run the schedule; return the loss of the global batch."""
        call = self._call
        if call.is_empty:
            whole = call.begin_whole_loss(None)()
        else:
            run = call.run(learns=True)
            office = call.office(self._tasks, True)
            run.borrow(office)
            tasks, rest = _split_off_weights(self._tasks[call.pipeline.stages.device])
            run.run(office, tasks, lambda n: self._seeds(run, n))
            # So that no rank waits for another rank's W.
            finish = call.begin_whole_loss(run, self._divided_by or 1.0)
            run.run(office, rest, _no_seeds)
            self._found = run.collect(office)
            self._arguments = call.argument_gradients(run, office)
            call.pipeline.links.finish_sending()
            whole = finish()
        if not whole.kind.reduced:
            raise SpreadError(
                "the loss returned a value for each sample, whose gradients depend on what is "
                'computed from them; use schedule="gpipe", whose backward passes begin with '
                "loss.backward()"
            )
        self._left = whole.left
        return [whole.value], [True]

    def _seeds(self, run: RankRun, number: int) -> Gradients:
        if self._divided_by is None:
            self._divided_by = self._call.expected_divisor()
        return {_RESULT: [torch.full_like(run.results[number][_RESULT], 1 / self._divided_by)]}

    def backward(self, upstream: Sequence[Tensor | None], keeps: bool) -> list[Tensor | None]:
        """Return the kept gradients times the gradient of the loss."""
        call = self._call
        (given,) = upstream
        if given is None:
            return [None] * (1 + len(call.parameters) + len(call.arguments))
        if call.pipeline.links.equals is not None or call.watches_overflow:
            call.agreement.exchange.meet(Phase.BACKWARD)
        factor = (given.float() if given.dtype in _HALF else given) / self._left
        arguments = scale(self._arguments, factor, in_place=False)
        return call.deliver(self._found, arguments, factor, keeps)


class StepLater(_OverRanks):
    """Forward tasks in the call; `backward` runs the backward tasks."""

    def __init__(
        self,
        call: RankCall,
        forwards: Sequence[Sequence[Task]],
        backwards: Sequence[Sequence[Task]],
    ) -> None:
        super().__init__(call)
        self._forwards, self._backwards = forwards, backwards
        self._run: RankRun | None = None
        self._divisor: Tensor | None = None  # of a reduced loss
        self._joined: list[Tensor] = []  # the results, on the rank of the last stage
        self.tree: Any = None  # the structure of the results

    def forward(self) -> tuple[list[Tensor], list[bool]]:
        """Run the forward passes; return the loss, or the tensors of the outputs."""
        call = self._call
        run = None
        if not (call.is_empty and call.loss_of is not None):
            run = self._run = call.run(learns=True)
            office = call.office(self._forwards, True)
            run.borrow(office)
            run.run(office, self._forwards[call.pipeline.stages.device], _no_seeds)
            call.pipeline.links.finish_sending()
        if call.loss_of is not None:
            whole = call.begin_whole_loss(run)()
            if whole.kind.reduced:
                self._divisor, self.tree = whole.divisor, whole.value
                return [whole.value], [True]
            if run is None:
                raise SpreadError(
                    "this pipeline has no samples of the global batch, so the losses of its "
                    "samples are unknown; give every pipeline a sample, or reduce the loss"
                )
        assert run is not None
        last = call.pipeline.stages.traffic.device_of_stage[-1]
        self.tree = call.results_of(run, last)
        self._joined = tensors_of(self.tree)
        depend = [each.requires_grad for each in self._joined]
        return [each.detach() for each in self._joined], depend

    def backward(self, upstream: Sequence[Tensor | None], keeps: bool) -> list[Tensor | None]:
        """Run the backward passes; return the gradients."""
        call, run = self._call, self._run
        if keeps:
            raise SpreadError(
                "retain_graph=True would run the backward passes of all stages again, which a "
                "pipeline over ranks cannot do; call the model again"
            )
        call.agreement.exchange.meet(Phase.BACKWARD)
        found: dict[Tensor, Tensor] = {}
        arguments: list[Tensor | None] = [None] * len(call.arguments)
        if run is not None and not call.is_empty:
            seeds = self._seeds(upstream) if call.is_last else _no_seeds
            office = call.office(self._backwards, False)
            run.run(office, self._backwards[call.pipeline.stages.device], seeds)
            found = run.collect(office)
            arguments = call.argument_gradients(run, office)
            call.pipeline.links.finish_sending()
        self._run = None
        factor = 1.0 if self._divisor is not None else call.weight
        return call.deliver(found, arguments, factor, keeps=False)

    def _seeds(self, upstream: Sequence[Tensor | None]) -> Callable[[int], Gradients]:
        run = self._run
        assert run is not None
        values = {number: tensors_of(each[_RESULT]) for number, each in run.results.items()}
        if self._divisor is not None:
            (given,) = upstream
            assert given is not None
            gradient = given.to(self._divisor.dtype) / self._divisor
            return lambda number: {_RESULT: [gradient.to(values[number][0].dtype)]}
        leaves = {id(t): t for each in values.values() for t in each if t.requires_grad}
        pairs = [
            (joined, gradient)
            for joined, gradient in zip(self._joined, upstream, strict=True)
            if gradient is not None and joined.requires_grad
        ]
        computed: Sequence[Tensor | None] = [None] * len(leaves)
        if pairs:
            joined, given_ = zip(*pairs, strict=True)
            with torch.enable_grad():
                computed = torch.autograd.grad(
                    joined, [*leaves.values()], given_, allow_unused=True
                )
        gradient_of = dict(zip(leaves, computed, strict=True))
        return lambda number: {_RESULT: [gradient_of.get(id(t)) for t in values[number]]}


def evaluate(call: RankCall, forwards: Sequence[Sequence[Task]]) -> Any:
    """Return the loss or the outputs of a call that does not learn."""
    run = None
    if not (call.is_empty and call.loss_of is not None):
        run = call.run(learns=False)
        office = call.office(forwards, True)
        run.borrow(office)
        run.run(office, forwards[call.pipeline.stages.device], _no_seeds)
        call.pipeline.links.finish_sending()
    if call.loss_of is not None:
        whole = call.begin_whole_loss(run)()
        if whole.kind.reduced:
            return whole.value
    assert run is not None
    return call.results_of(run, call.pipeline.stages.traffic.device_of_stage[-1])


def fingerprint(*facts: Any) -> int:
    """Return a number that is equal on every rank for the same facts, and exact in float64."""
    return zlib.crc32(repr(facts).encode())


def shapes_of(value: Any) -> list[Any]:
    """Return the shapes of all tensors in arguments, including those in objects, and the rest."""
    found: list[Any] = []
    for _, leaf in walk_leaves(value):
        if isinstance(leaf, Tensor):
            found.append(_shape_of(leaf))
        elif isinstance(leaf, (bool, int, float, str)):
            found.append(leaf)
        else:
            found.append(type(leaf).__name__)
            held = tensors_within(leaf)
            found.extend(_shape_of(each) for _, each in held if isinstance(each, Tensor))
    return found


def _shape_of(tensor: Tensor) -> tuple[tuple[int, ...], str, bool]:
    return tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad


def only(work: Work, tasks: Sequence[Sequence[Task]]) -> list[list[Task]]:
    """Return the tasks of one kind of work, by device."""
    return [[task for task in its_tasks if task.work is work] for its_tasks in tasks]


def _split_off_weights(tasks: Sequence[Task]) -> tuple[Sequence[Task], Sequence[Task]]:
    """Return the tasks to the last one that another rank or the loss may need, and the rest."""
    end = len(tasks)
    while end and tasks[end - 1].work is Work.BACKWARD_WEIGHT:
        end -= 1
    return tasks[:end], tasks[end:]


def _no_seeds(number: int) -> Gradients:
    return {}


def spread_overflow(gradients: Sequence[Tensor | None], device: torch.device, links: Links) -> None:
    """Make every rank see a gradient that is not finite, so that all scalers skip the step."""
    present = [each for each in gradients if each is not None]
    sums = [torch.stack([each.float().abs().sum() for each in present]).sum()] if present else []
    has = torch.zeros((), device=device)
    if sums:
        has += (~sums[0].isfinite()).float()
    links.add_up(has)
    for each in present[:1]:
        each.view(-1)[:1] += torch.where(has > 0, torch.inf, 0.0).to(each.dtype)
