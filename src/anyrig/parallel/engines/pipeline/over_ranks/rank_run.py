"""The part of one call that this rank computes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from ..failure import explain_failure
from ..placement import PlacedPipeline
from ..schedules.schedule import Task, Work, find_split
from ..slots import Slot, tensors_in
from ..stage import Gradients, Stage, detached
from .elsewhere import Elsewhere
from .message import ARGUMENTS, Message, Subject, Traffic
from .office import Office

Seeds = Callable[[int], Gradients]


@dataclass(frozen=True)
class SharedTensor:
    """A parameter or buffer that several stages use.

    Attributes:
        places: the places in each stage, by the stage's number, the owner first.
    """

    places: Mapping[int, Sequence[Slot]]

    @property
    def owner(self) -> int:
        """The first stage that uses the tensor."""
        return next(iter(self.places))

    @property
    def tensor(self) -> Tensor | None:
        """The tensor, or its stand-in on a rank that does not own it."""
        return self.places[self.owner][0].get()


@dataclass(frozen=True)
class RankStages:
    """A pipeline, as a rank sees it.

    Attributes:
        pipeline: the stages of all ranks; other ranks' stages have no parameters here.
        device: the number of this rank's device.
        traffic: the messages between the devices.
        shared: the tensors that several stages use, in the order of `traffic.shared`.
    """

    pipeline: PlacedPipeline
    device: int
    traffic: Traffic
    shared: tuple[SharedTensor, ...]

    @property
    def own(self) -> tuple[Stage, ...]:
        """The stages of this rank, in order."""
        places = self.traffic.device_of_stage
        return tuple(s for s in self.pipeline.stages if places[s.index] == self.device)

    def tensors(self) -> list[Tensor]:
        """Return the parameters and buffers that this rank has, each once."""
        found = {
            id(tensor): tensor
            for stage in self.own
            for _, tensor in tensors_in(stage.slots)
            if not isinstance(tensor, Elsewhere)
        }
        return list(found.values())

    def buffers(self) -> list[Tensor]:
        """Return the buffers that this rank has, each once."""
        return [each for each in self.tensors() if not isinstance(each, nn.Parameter)]


class RankRun:
    """The tasks of this rank in one call, and the graphs between forward and backward passes.

    Args:
        stages: the stages of the pipeline.
        bound: the values of the arguments of each micro-batch, on the rank of the first stage.
        finish: returns the result of a micro-batch from the values of the last stage.
        recomputes: whether a micro-batch's activations are computed again in the backward pass.
        micro_batches: the number of micro-batches.
        learns: whether backward passes may follow.
        checks: whether to look for tensors that learn and belong to no stage.
    """

    def __init__(
        self,
        stages: RankStages,
        bound: Sequence[dict[str, Any]],
        finish: Callable[[int, dict[str, Any]], dict[str, Any]],
        recomputes: Callable[[int], bool],
        micro_batches: int,
        learns: bool,
        checks: bool,
    ) -> None:
        self._facts, self._traffic = stages, stages.traffic
        self._bound, self._finish, self._recomputes = bound, finish, recomputes
        self._micro_batches, self.learns, self._checks = micro_batches, learns, checks
        # Copies, which have the graphs of this call only.
        self._stages = {stage.index: _without_graphs(stage) for stage in stages.own}
        self._last = len(stages.pipeline.stages) - 1
        self._replacements: dict[int, list[tuple[Slot, Tensor]]] = {i: [] for i in self._stages}
        self._leaves: dict[int, dict[Tensor, None]] = {i: {} for i in self._stages}
        self._leaf_of: dict[int, tuple[Tensor, Tensor]] = {}  # by id: this rank's tensor, its leaf
        self._lent: dict[tuple[int, int], Tensor] = {}  # by shared tensor and stage: its leaf
        self._split: set[tuple[int, int]] = set()  # (stage, micro-batch): defers W
        self.results: dict[int, dict[str, Any]] = {}

    def borrow(self, office: Office) -> None:
        """Exchange the tensors that several stages use, and replace what learns by leaves."""
        self._lend(office)
        shared = {id(each.tensor) for each in self._facts.shared}
        for index, stage in self._stages.items():
            for slot, tensor in tensors_in(stage.slots):
                if self.learns and tensor.requires_grad and id(tensor) not in shared:
                    _, leaf = self._leaf_of.setdefault(id(tensor), (tensor, _leaf(tensor, tensor)))
                    self._replace(index, [slot], leaf)

    def run(self, office: Office, tasks: Sequence[Task], seeds: Seeds) -> None:
        """Compute tasks; ``seeds(micro_batch)`` are the gradients of the last stage's results."""
        self._split |= find_split(tasks)
        for (index, work), together in groupby(tasks, lambda task: (task.stage, task.work)):
            stage, numbers = self._stages[index], [task.micro_batch for task in together]
            if work is Work.BACKWARD_WEIGHT:
                with self._explained(stage, numbers[0], None):
                    stage.backward_weights(numbers)
            for number in numbers:
                if work is Work.FORWARD:
                    self._forward(office, stage, number)
                elif work is not Work.BACKWARD_WEIGHT:
                    self._backward(office, stage, number, seeds)

    def collect(self, office: Office) -> dict[Tensor, Tensor]:
        """Return the gradients of this rank's tensors, when all backward passes have run."""
        found: dict[Tensor, Tensor] = {}
        for tensor, leaf in self._leaf_of.values():
            if leaf.grad is not None:
                found[tensor], leaf.grad = leaf.grad, None
        for number, shared in enumerate(self._facts.shared):
            owner, *others = shared.places
            for stage in others:
                if stage in self._stages:
                    leaf_ = self._lent.get((number, stage))
                    message = Message(Subject.RETURNED, owner, stage, number)
                    office.send(message, [None if leaf_ is None else leaf_.grad])
            total = self._lent[number, owner].grad if (number, owner) in self._lent else None
            for stage in others if owner in self._stages else ():
                (gradient,) = office.receive(Message(Subject.RETURNED, owner, stage, number))
                if gradient is not None:
                    total = gradient if total is None else total + gradient
            if total is not None and shared.tensor is not None:
                found[shared.tensor] = total
        return found

    def argument_gradients(self, office: Office) -> list[Gradients]:
        """Return the gradients of the arguments' values, on the rank of the first stage."""
        return [self._gradients(office, ARGUMENTS, n) for n in range(self._micro_batches)]

    def _lend(self, office: Office) -> None:
        for number, shared in enumerate(self._facts.shared):
            owner, *others = shared.places
            tensor = shared.tensor
            assert tensor is not None
            if owner in self._stages:
                for stage in others:
                    given = [tensor.detach().requires_grad_(tensor.requires_grad)]
                    office.send(Message(Subject.LENT, owner, stage, number), given)
            for stage, slots in shared.places.items():
                if stage not in self._stages:
                    continue
                copy_ = tensor
                if stage != owner:
                    (copy_,) = office.receive(Message(Subject.LENT, owner, stage, number))
                if self.learns and tensor.requires_grad:
                    copy_ = self._lent[number, stage] = _leaf(copy_, tensor)
                self._replace(stage, slots, copy_.detach() if not self.learns else copy_)

    def _replace(self, stage: int, slots: Sequence[Slot], tensor: Tensor) -> None:
        self._replacements[stage] += [(slot, tensor) for slot in slots]
        if tensor.requires_grad:
            self._leaves[stage][tensor] = None

    def _forward(self, office: Office, stage: Stage, number: int) -> None:
        if stage.index == 0:
            self._post(office, ARGUMENTS, number, self._bound[number])
        values: dict[str, Any] = {}
        for maker, _ in self._traffic.makers(stage.index):
            values.update(office.receive(Message(Subject.VALUES, maker, stage.index, number)))
        values = {name: values[name] for name in stage.reads}
        is_last = stage.index == self._last
        with self._explained(stage, number, values):
            written = (
                stage.forward(
                    number,
                    values,
                    (lambda made: self._finish(number, made)) if is_last else None,
                    self._replacements[stage.index],
                    self._recomputes(number),
                    (stage.index, number) in self._split,
                    self._checks and number == 0,
                )
                if self.learns
                else self._evaluate(stage, number, values)
            )
        if is_last:
            self.results[number] = written
        else:
            self._post(office, stage.index, number, written)

    def _evaluate(self, stage: Stage, number: int, values: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            written = stage.compute(values, self._replacements[stage.index])
            return self._finish(number, written) if stage.index == self._last else written

    def _backward(self, office: Office, stage: Stage, number: int, seeds: Seeds) -> None:
        is_last = stage.index == self._last
        gradients = seeds(number) if is_last else self._gradients(office, stage.index, number)
        with self._explained(stage, number, None):
            returned = stage.backward(number, gradients, [*self._leaves[stage.index]])
        for maker, names in self._traffic.makers(stage.index):
            given = {name: returned.get(name, []) for name in names}
            office.send(Message(Subject.GRADIENTS, maker, stage.index, number), given)

    def _explained(
        self, stage: Stage, number: int, values: Mapping[str, Any] | None
    ) -> AbstractContextManager[None]:
        stages = self._facts.pipeline.stages
        return explain_failure(stage, stages, number, self._micro_batches, values)

    def _post(self, office: Office, maker: int, number: int, values: Mapping[str, Any]) -> None:
        for reader, names in self._traffic.readers(maker):
            given = detached({name: values[name] for name in names})
            office.send(Message(Subject.VALUES, maker, reader, number), given)

    def _gradients(self, office: Office, maker: int, number: int) -> Gradients:
        """Return the gradients of a maker's values, added in the order of their readers."""
        found: Gradients = {}
        for reader, _ in self._traffic.readers(maker):
            message = Message(Subject.GRADIENTS, maker, reader, number)
            for name, given in office.receive(message).items():
                before = found.get(name) or [None] * len(given)
                if given:  # empty if no tensor needs a gradient
                    found[name] = [_add(*pair) for pair in zip(before, given, strict=True)]
                else:
                    found.setdefault(name, [])
        return found


def _add(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _leaf(value: Tensor, like: Tensor) -> Tensor:
    detached_ = value.detach()
    is_parameter = isinstance(like, nn.Parameter)
    return nn.Parameter(detached_) if is_parameter else detached_.requires_grad_()


def _without_graphs(stage: Stage) -> Stage:
    copied = copy.copy(stage)
    copied._graphs, copied._deferred = {}, {}
    return copied
