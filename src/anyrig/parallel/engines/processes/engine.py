"""Replicas in processes: one process for each part of a batch, and no launcher.

::

                        this process: the script, rank 0             worker 1 …
    spread              starts workers, and does not wait            imports torch
    model(x, target=y)  divides the batch
       ├─ module, if it has changed ── pickled by value ──────────▶  unpickles it
       ├─ its part ──────────────────── shared memory ────────────▶
       │  own part                                                   forward and loss
       └─ results of all parts ◀─────── shared memory ────────────   keeps the graph
    loss.backward()     gradients of results ─────────────────────▶
       │  own gradients                                              writes its row of gradients
       └─ the sum, as if one device had computed it
    optimizer.step()    writes the parameters, which the workers read: they lie in shared memory

So one optimizer steps, no gradient is all-reduced and no parameter is sent. Results, not losses,
cross the border: `DividedEngine` combines or joins those of processes as those of threads.

A worker knows only what this process sends: the module, the loss, modes, random numbers, and the
tensors that are not parameters. `ModuleState` compares these in each call, and sends them if they
have changed; it refuses what cannot be sent. Workers import no script, and have no state that a new
worker would miss. So whatever interrupts an exchange (Ctrl-C, a killed worker, a wait that takes
too long) ends all of them, and the next call starts new ones.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ....transfer.tree import map_leaves
from ...batch_statistics import written_buffers
from ...layout import Layout
from ...losses.checked_means import FirstCall
from ...losses.delivery import deliver
from ...losses.loss import Criterion, compute_loss_part
from ...losses.means_of_parts import computing_part
from ..divided_engine import DividedEngine, Parts, Written
from ..replicas.meeting import Meeting, is_inside
from .conversation import Conversation, copied
from .module_state import ModuleState
from .part_request import Definition, ForwardRequest
from .pool import Pool, Worker, pool_of_process
from .results import learning_tensors, replace_tensors
from .settings import Settings
from .step import Step, free


@dataclass(eq=False)
class _Known:
    """What a worker has of a model: a version of the module, and which of its copies are old."""

    version: int = 0
    stale: set[int] = field(default_factory=set)


class ProcessEngine(DividedEngine):
    """Computes the parts of a batch in this process and in workers, all on the CPU.

    Args:
        module: the module; its parameters move to shared memory in place, at the first call.
        layout: has the CPU once for each process.
        loss: a criterion, as for `anyrig.spread`.
    """

    def __init__(self, module: nn.Module, layout: Layout, loss: Criterion | None) -> None:
        super().__init__(module, layout, loss)
        self._start()

    def _start(self) -> None:
        super()._start()
        self._pool: Pool = pool_of_process()
        self._number = next(self._pool.numbers)
        self._model = ModuleState(self.module, self.loss)
        self._known: weakref.WeakKeyDictionary[Worker, _Known] = weakref.WeakKeyDictionary()
        self._was_training = True
        weakref.finalize(self, self._pool.forget, "model", self._number)
        self._pool.start(len(self.layout.devices) - 1)

    def _is_inside(self) -> bool:
        return is_inside()

    def _split(self, samples: int) -> tuple[int, ...]:
        first, *others = super()._split(samples)
        if not first and any(others):  # this process has a part of every batch
            largest = max(range(len(others)), key=others.__getitem__)
            first, others[largest] = others[largest], 0
        return (first, *others)

    def _compute_on(
        self, device: torch.device, function: Callable[..., Any], given: tuple[Any, Any]
    ) -> Any:
        inputs, kwargs = given
        return function(*inputs, **kwargs)

    def _compute_parts(self, parts: Parts) -> tuple[list[Any], Written]:
        own, cpu = self._own_function(parts), self.layout.lead
        if len(parts.active) == 1:
            inputs, kwargs = parts.given[0]
            return [own(*inputs, **kwargs)], []
        self._model.follow()
        before = self._model.tensors_in_attributes() if parts.is_first else {}
        settings = Settings.read()
        differences = self._check_first_call(
            self.module, parts.loss, parts.given[0], parts.samples[0], cpu
        )
        learns = settings.learns and not settings.inference
        inputs = [learning_tensors(each) if learns else [] for each in parts.given]
        cut = {id(each): each.detach().requires_grad_() for each in inputs[0]}
        given = replace_tensors(parts.given[0], cut)
        with self._pool.exchanging(len(self.layout.devices) - 1) as workers:
            used = [workers[number - 1] for number in parts.active[1:]]
            conversation = Conversation(used, "the forward")
            call = next(self._pool.numbers)
            self._refresh_copies(workers)
            segments = conversation.ask([*self._requests(used, parts, call, settings)])
            conversation.compute(partial(self._compute_own, own, given, parts, conversation))
        try:
            result, answers = conversation.results(parts.given)
            differences.refuse(result)
            if parts.is_first:
                self._model.refuse_kept(before)
            results = [result, *(_copied_result(answer.result) for answer in answers)]
            found = [learning_tensors(each) if learns else [] for each in results]
        except BaseException:
            self._pool.forget("call", call)
            for worker in used:  # it may have failed before it had the module
                self._known.pop(worker, None)
            free(segments)
            raise
        parts.targets.extend(conversation.targets)
        written = [written_buffers(self.module), answers[0].written] if parts.is_first else []
        if not any(found):
            free(segments)
            return results, written
        step = Step(
            call,
            self._pool,
            parts.active[1:],
            self._model.tensors,
            found,
            inputs,
            segments,
        )
        step.compute_with([*cut.values()])
        return _delivered(step, results, found), written

    def _own_function(self, parts: Parts) -> Callable[..., Any]:
        if parts.loss is None:
            return self.module
        cpu, samples = self.layout.lead, parts.samples[0]
        return partial(compute_loss_part, self.module, parts.loss, cpu, samples, None)

    def _compute_own(
        self,
        own: Callable[..., Any],
        given: tuple[Any, Any],
        parts: Parts,
        conversation: Conversation,
    ) -> Any:
        share = parts.samples[0] / (sum(parts.samples) or 1)
        first = FirstCall(parts.samples[0], given, parts.loss is not None)
        with computing_part(
            lambda count: (conversation.add_up(count), share), first if parts.is_first else None
        ):
            # In a meeting, a spread model within the module computes alone.
            alone = Meeting([self.layout.lead], exchanges=False)
            result = alone.attend(lambda: own(*given[0], **given[1]))
        if parts.is_first:
            first.check_output(result)
        return result

    def _refresh_copies(self, workers: Sequence[Worker]) -> None:
        """Copy what has changed, but for parameters, and note which workers do not have it yet."""
        training = any(module.training for module in self.module.modules())
        refreshed = self._model.tensors.refresh(training or self._was_training)
        self._was_training = training
        for worker in workers:
            self._known.setdefault(worker, _Known()).stale.update(refreshed)

    def _requests(
        self, workers: Sequence[Worker], parts: Parts, call: int, settings: Settings
    ) -> Iterator[ForwardRequest]:
        model = self._model
        learns = bytes(slot.tensor.requires_grad for slot in model.tensors.parameters)
        for worker, given, samples in zip(workers, parts.given[1:], parts.samples[1:], strict=True):
            definition, known = None, self._known[worker]
            if known.version != model.version:
                known.version, known.stale = model.version, set()  # the worker copies all
                places = [slot.place for slot in model.tensors.slots]
                row, _ = model.tensors.row(worker.number)
                definition = Definition(model.text, places, model.tensors.block, row, model.facts)
            forgotten, worker.forgotten = worker.forgotten, []
            stale, known.stale = known.stale, set()
            yield ForwardRequest(
                self._number,
                call,
                definition,
                learns,
                sorted(stale),
                given,
                samples,
                sum(parts.samples),
                parts.loss is not None,
                parts.is_first,
                settings,
                forgotten,
            )

    def refresh(self) -> None:
        """Make the next call send the module and every tensor again."""
        self._model = ModuleState(self.module, self.loss)

    def __getstate__(self) -> dict[str, Any]:
        rest = ("_pool", "_number", "_model", "_known")
        return {**super().__getstate__(), **dict.fromkeys(rest)}


def _copied_result(result: Any) -> Any:
    """Return a worker's result in memory of this process alone; what learns is a new leaf."""

    def copy(leaf: Any, path: object) -> Any:
        return copied(leaf).requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf

    return map_leaves(result, copy)


def _delivered(step: Step, results: Sequence[Any], found: Sequence[Sequence[Tensor]]) -> list[Any]:
    """Return the results as a part of the caller's graph."""
    flat = [each for tensors in found for each in tensors]
    graph = deliver(step, step.learning)
    by = {id(before): after for before, after in zip(flat, graph, strict=True)}
    return [replace_tensors(result, by) for result in results]
