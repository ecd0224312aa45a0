"""The backward pass of a batch: each process differentiates its part, this one adds up.

::

    forward     parameters ─▶ a node ─▶ result of each part ─▶ the loss of the batch
    backward    gradient of each result ─▶ the process that has the part's graph
                its gradients ─▶ its row of shared memory ─▶ the sum, in the order of parts
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from ....errors import SpreadError
from ...gradient_hooks import hooks_of
from ...losses.delivery import Delivery
from .conversation import Conversation, copied
from .link import Segment
from .part_request import BackwardRequest, Differentiated
from .pool import Pool
from .shared_tensors import SharedTensors


class Step(Delivery):
    """The parts of one batch, between their forward and their backward passes.

    Args:
        call: the number of the forward.
        pool: the workers; `workers` has the positions of those that have a part.
        tensors: the memory of the module's tensors.
        results: for each part, the tensors of its result that have gradients.
        inputs: for each part, the tensors among its arguments that require gradients.
        segments: what holds the arguments of workers' parts.
    """

    no_graph = (
        "the gradients are computed in several processes, so create_graph=True has no graph of "
        "them; use the threads of plan=Replicas(), or spread over one device"
    )

    def __init__(
        self,
        call: int,
        pool: Pool,
        workers: Sequence[int],
        tensors: SharedTensors,
        results: Sequence[Sequence[Tensor]],
        inputs: Sequence[Sequence[Tensor]],
        segments: Sequence[Segment | None],
    ) -> None:
        self._call, self._pool, self._workers, self._tensors = call, pool, workers, tensors
        self._generation = pool.generation
        self._results, self._inputs = results, inputs
        self._parameters = [slot.tensor for slot in tensors.parameters if slot.tensor.requires_grad]
        self._release = weakref.finalize(self, _forget, pool, call, segments)

    @property
    def learning(self) -> list[Tensor]:
        """The tensors that get gradients: parameters, then the inputs of all parts."""
        return [*self._parameters, *(each for inputs in self._inputs for each in inputs)]

    def forward(self) -> tuple[list[Tensor], list[bool]]:
        """Return the results of all parts without their graphs."""
        found = [each.detach() for results in self._results for each in results]
        return found, [True] * len(found)

    def backward(self, upstream: Sequence[Tensor | None], keeps: bool) -> Sequence[Tensor | None]:
        """Return the gradients of all tensors that learn."""
        if not self._release.alive:
            raise SpreadError(
                "an earlier backward pass of this batch has failed, and left no graph; call the "
                "model again"
            )
        each_part: list[list[Tensor | None]] = []
        taken = iter(upstream)
        for results in self._results:
            each_part.append([next(taken) for _ in results])
        with self._pool.lock:  # the rows are read before another backward pass writes them
            with self._pool.exchanging(max(self._workers), self._generation) as workers:
                used = [workers[number - 1] for number in self._workers]
                conversation = Conversation(used, "the backward pass")
                segments = conversation.ask(
                    [BackwardRequest(self._call, each, keeps) for each in each_part[1:]]
                )
                conversation.compute(lambda: self._differentiate(each_part[0], keeps))
                free(segments)
            try:
                own, answers = conversation.results([[each] for each in each_part])
            finally:
                if not keeps:
                    self._finish()
            return self._added_up(own, answers)

    def _added_up(
        self, own: Sequence[Tensor | None], answers: Sequence[Differentiated]
    ) -> list[Tensor | None]:
        """Return the sums for parameters, then the gradients of the inputs of all parts."""
        parameters = len(self._parameters)
        sums, of_inputs = [*own[:parameters]], [*own[parameters:]]
        known = {id(each): position for position, each in enumerate(self._parameters)}
        positions = [known.get(id(slot.tensor)) for slot in self._tensors.parameters]
        memory = self._tensors.sums.tensors()
        for number, answer in zip(self._workers, answers, strict=True):
            _, row = self._tensors.row(number)
            found = zip(positions, answer.present, row, memory, strict=True)
            for position, is_present, other, place in found:
                if is_present and position is not None:
                    sums[position] = _sum(sums[position], other, place)
            of_inputs += [None if each is None else copied(each) for each in answer.of_inputs]
        return [*sums, *of_inputs]

    def _differentiate(self, upstream: Sequence[Tensor | None], keeps: bool) -> list[Tensor | None]:
        """Return the gradients of this process's own part."""
        learning = [*self._parameters, *self._own_inputs]
        pairs = [
            (result, gradient)
            for result, gradient in zip(self._results[0], upstream, strict=True)
            if gradient is not None
        ]
        found: list[Tensor | None] = [None] * len(learning)
        if not pairs:
            return found
        now = [number for number, each in enumerate(learning) if each.requires_grad]
        with _without_hooks(self._parameters):
            gradients = torch.autograd.grad(
                [result for result, _ in pairs],
                [learning[number] for number in now],
                [gradient for _, gradient in pairs],
                retain_graph=keeps,
                allow_unused=True,
            )
        for number, gradient in zip(now, gradients, strict=True):
            found[number] = gradient
        return found

    # The inputs of this process's part as its graph has them.
    _own_inputs: Sequence[Tensor] = ()

    def compute_with(self, own_inputs: Sequence[Tensor]) -> None:
        """Note the inputs that this process's own graph begins with."""
        self._own_inputs = own_inputs

    def _finish(self) -> None:
        """Free what the graph needed; the workers have freed theirs."""
        held = self._release.detach()
        if held is not None:
            free(held[2][2])
        self._results = ()


def _sum(before: Tensor | None, other: Tensor, memory: Tensor) -> Tensor:
    """Return the sum of two gradients, written to the given memory."""
    if before is None:
        return memory.copy_(other)
    if before.layout is not torch.strided:
        raise SpreadError(
            f"a parameter of shape {tuple(before.shape)} has a sparse gradient, which processes do "
            "not share; use the threads of plan=Replicas()"
        )
    return torch.add(before, other, out=memory)


def free(segments: Sequence[Segment | None]) -> None:
    """Let other messages use segments."""
    for segment in segments:
        if segment is not None:
            segment.is_free = True


def _forget(pool: Pool, call: int, segments: Sequence[Segment | None]) -> None:
    pool.forget("call", call)
    free(segments)


@contextmanager
def _without_hooks(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Keep a part's gradients from the parameters' hooks, which get the sum of all parts."""
    with ExitStack() as stack:
        for parameter in parameters:
            hooks = hooks_of(parameter)
            if hooks:
                held = dict(hooks)
                hooks.clear()
                stack.callback(hooks.update, held)
        yield
