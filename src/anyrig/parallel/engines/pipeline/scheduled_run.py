"""A training step whose forward and backward passes are interleaved, as its schedule says.

The gradients are those of the sum of all micro-batches' losses, since what a mean divides by is
known only when all targets have been counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....errors import SpreadError
from ...losses.loss_part import LossPart
from .chain import Chain
from .failure import explain_failure
from .graph_run import take_all
from .held_tensors import HeldTensor, add_up, lend_leaves
from .mailbox import Mailbox
from .micro_batches import MicroBatch
from .parcel import send_all
from .schedules.schedule import Task, Work, find_split
from .stage import Gradients, Replacements, Stage, detached, leaves_of, tensors_of

_LOSS = "loss"


@dataclass
class ScheduledRun:
    """One training step: `run` runs every task once.

    Attributes:
        chain: the whole module.
        stages: all of its stages, in order.
        tasks: all tasks of the schedule, in the order in which they are issued.
        micro_batches: the arguments of the call.
        loss_of: computes the loss of a micro-batch from the module's output, the target and the
            number of samples, on the device of the last stage.
        recomputes: whether a micro-batch's activations are computed again in the backward pass.
        held: the parameters and buffers of the stages.
        bound: what `Chain.bind_parts` returned.
        checks: whether to look for tensors that learn and that no stage knows.
    """

    chain: Chain
    stages: Sequence[Stage]
    tasks: Sequence[Task]
    micro_batches: Sequence[MicroBatch]
    loss_of: Callable[[Any, Any, int], LossPart]
    recomputes: Callable[[int], bool]
    held: Sequence[HeldTensor]
    bound: Sequence[dict[str, Any]]
    checks: bool

    def __post_init__(self) -> None:
        self._mailbox = Mailbox(self.stages)
        self._parts: dict[int, LossPart] = {}
        self._targets: dict[int, Any] = {}
        self._replacements: list[Replacements] = []
        self._leaves: list[list[Tensor]] = []  # of each stage, for its parameters
        self._split = find_split(self.tasks)  # (stage, micro-batch): defers W

    def run(self) -> dict[Tensor, Tensor]:
        """Compute the losses, and return the gradients of their sum, by tensor.

        The tensors are parameters and tensors of `bound` that require grad.
        """
        replacements, leaves = lend_leaves(self.held, self.stages)
        self._replacements = list(replacements)
        self._leaves = [leaves_of(pairs) for pairs in replacements]
        issue_work = {
            Work.FORWARD: self._forward,
            Work.BACKWARD: self._backward,
            Work.BACKWARD_INPUT: self._backward,
            Work.BACKWARD_WEIGHT: self._backward_weights,
        }
        try:
            for task in self.tasks:
                issue_work[task.work](self.stages[task.stage], task.micro_batch)
        finally:
            for stage in self.stages:
                stage.forget()
        found: dict[Tensor, Tensor] = {}
        for number, copies in leaves.items():
            total = add_up(copies)
            if total is not None:
                found[self.held[number].tensor] = total
        for number, bound in enumerate(self.bound):
            gradients = self._mailbox.fetch_gradients(number, tuple(bound))
            for name, value in bound.items():
                for tensor, gradient in zip(tensors_of(value), gradients[name], strict=False):
                    if gradient is not None:
                        before = found.get(tensor)
                        found[tensor] = gradient if before is None else before + gradient
        return found

    @property
    def parts(self) -> list[LossPart]:
        """The loss of each micro-batch, in order, without graphs."""
        return [self._parts[number] for number in range(len(self.micro_batches))]

    def _forward(self, stage: Stage, number: int) -> None:
        last = self.stages[-1]
        if stage.index == 0:
            self._mailbox.post(number, detached(self.bound[number]))
            self._targets[number] = send_all(self.micro_batches[number].target, last.device)
        values = self._mailbox.fetch(stage, number)
        with explain_failure(stage, self.stages, number, len(self.micro_batches), values):
            written = stage.forward(
                number,
                values,
                (lambda made: self._compute_loss(number, made)) if stage is last else None,
                self._replacements[stage.index],
                self.recomputes(number),
                (stage.index, number) in self._split,
                self.checks and number == 0,
            )
        if stage is not last:
            self._mailbox.post(number, written)

    def _backward(self, stage: Stage, number: int) -> None:
        if stage is self.stages[-1]:
            gradients: Gradients = {_LOSS: [torch.ones_like(self._parts[number].value)]}
        else:
            gradients = self._mailbox.fetch_gradients(number, stage.writes)
        with explain_failure(stage, self.stages, number, len(self.micro_batches), None):
            returned = stage.backward(number, gradients, self._leaves[stage.index])
        self._mailbox.post_gradients(stage, number, returned)

    def _backward_weights(self, stage: Stage, number: int) -> None:
        with explain_failure(stage, self.stages, number, len(self.micro_batches), None):
            stage.backward_weights([number])

    def _compute_loss(self, number: int, made: dict[str, Any]) -> dict[str, Any]:
        target = take_all(self._targets.pop(number))
        samples = self.micro_batches[number].samples
        part = self.loss_of(self.chain.build(made), target, samples)
        if not part.reduced:
            raise SpreadError(
                "the loss returned a value for each sample, whose gradients depend on what is "
                'computed from them; use schedule="gpipe", whose backward passes begin with '
                "loss.backward()"
            )
        self._parts[number] = part.detach()
        return {_LOSS: part.value}
