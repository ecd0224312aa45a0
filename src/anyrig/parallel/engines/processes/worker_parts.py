"""What a worker computes: forwards of parts, whose graphs it keeps, and their backward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import ne
from typing import Any

import torch
from torch import Tensor, nn

from ...batch_statistics import written_buffers
from ...losses.checked_means import FirstCall
from ...losses.loss import compute_loss_part
from ...losses.means_of_parts import computing_part
from .link import Link, unpickle
from .part_request import (
    BackwardRequest,
    Computed,
    Definition,
    Differentiated,
    Failed,
    ForwardRequest,
    TargetCount,
    TargetTotal,
)
from .results import learning_tensors
from .watched_code import facts_of, functions_of, require_equal_code

_CPU = torch.device("cpu")


class Stopped(BaseException):
    """Ends a forward whose other parts were given up; modules that catch `Exception` do not."""


class WorkerModel:
    """A module and a loss, computing with shared parameters and copies of the other tensors."""

    def __init__(self, definition: Definition) -> None:
        places, block = definition.places, definition.block
        self._shared = [place.in_memory(block) for place in places]
        self._tensors = [
            nn.Parameter(shared, False) if place.is_parameter else shared.clone()
            for place, shared in zip(places, self._shared, strict=True)
        ]
        self.parameters = [
            tensor
            for place, tensor in zip(places, self._tensors, strict=True)
            if place.is_parameter
        ]
        self._row = [place.in_memory(definition.row) for place in places if place.is_parameter]
        # The versions of its tensors when they were filled with zeros.
        self._cleared = [-1] * len(self._row)
        self.module, self.loss = unpickle(definition.text, self._tensors.__getitem__)
        modules = [each for each in (self.module, self.loss) if isinstance(each, nn.Module)]
        functions = functions_of((m for each in modules for m in each.modules()), self.loss)
        require_equal_code(facts_of(functions), definition.facts)

    @contextmanager
    def gradients_in_row(self) -> Iterator[None]:
        """Have backward passes write the parameters' gradients to the row of this worker."""
        self.clear_row()
        learning = [
            each for each in zip(self.parameters, self._row, strict=True) if each[0].requires_grad
        ]
        for parameter, row in learning:
            parameter.grad = row
        try:
            yield
        finally:
            for parameter, _ in learning:
                parameter.grad = None

    def clear_row(self) -> None:
        """Fill the row with zeros, unless nothing was added to it since that was done last."""
        if self.present() != bytes(len(self._row)):
            self._cleared = [row.zero_()._version for row in self._row]

    def present(self) -> bytes:
        """Return 1 for each parameter to whose row something was added since it was cleared."""
        return bytes(map(ne, (row._version for row in self._row), self._cleared))

    def follow(self, learns: bytes, refreshed: Sequence[int]) -> None:
        """Take over what has changed in the parent."""
        for parameter, each in zip(self.parameters, learns, strict=True):
            if parameter.requires_grad != each:
                parameter.requires_grad_(bool(each))
        with torch.no_grad():
            for number in refreshed:
                self._tensors[number].copy_(self._shared[number])


@dataclass(frozen=True)
class _Graph:
    """A forward whose backward pass may follow."""

    model: WorkerModel
    results: Sequence[Tensor]
    inputs: Sequence[Tensor]


class WorkerParts:
    """The models and graphs of one worker."""

    def __init__(self, link: Link, number: int) -> None:
        self._link, self._number = link, number
        self._models: dict[int, WorkerModel] = {}
        self._graphs: dict[int, _Graph] = {}

    def answer(self, request: ForwardRequest | BackwardRequest) -> Any:
        """Return the answer to a request; raise what the module raises."""
        try:
            return (
                self.forward(request)
                if isinstance(request, ForwardRequest)
                else self.backward(request)
            )
        except Stopped:
            return Failed(None)

    def forward(self, request: ForwardRequest) -> Computed:
        """Compute the result of a part, and keep its graph."""
        for kind, number in request.forgotten:
            (self._models if kind == "model" else self._graphs).pop(number, None)
        if request.definition is not None:
            self._models[request.model] = WorkerModel(request.definition)
        model = self._models[request.model]
        model.follow(request.learns, request.refreshed)
        inputs, kwargs = request.given
        learning_inputs = learning_tensors(request.given)
        has_loss = request.has_loss
        first = FirstCall(request.samples, request.given, has_loss) if request.is_first else None
        with (
            request.settings.applied(self._number),
            computing_part(self._adding_up(request), first),
        ):
            if has_loss:
                result = compute_loss_part(
                    model.module, model.loss, _CPU, request.samples, None, *inputs, **kwargs
                )
            else:
                result = model.module(*inputs, **kwargs)
        if first is not None:
            first.check_output(result)
        results = learning_tensors(result)
        if results:
            self._graphs[request.call] = _Graph(model, results, learning_inputs)
        return Computed(result, written_buffers(model.module) if request.is_first else {})

    def _adding_up(self, request: ForwardRequest) -> Callable[[Tensor], tuple[Tensor, float]]:
        share = request.samples / (request.total or 1)

        def add_up(own: Tensor) -> tuple[Tensor, float]:
            segment = self._link.send(TargetCount(own))
            answer = self._link.receive()
            if segment is not None:
                segment.is_free = True
            assert isinstance(answer, TargetTotal)
            if answer.total is None:
                raise Stopped
            return answer.total.clone(), share

        return add_up

    def backward(self, request: BackwardRequest) -> Differentiated:
        """Compute the gradients of a call, and leave those of parameters in this worker's row."""
        graph = self._graphs[request.call]
        if not request.keeps:
            del self._graphs[request.call]
        model = graph.model
        for each in graph.inputs:  # a pass that failed may have left gradients
            each.grad = None
        pairs = [
            (result, gradient)
            for result, gradient in zip(graph.results, request.upstream, strict=True)
            if gradient is not None
        ]
        with model.gradients_in_row():
            torch.autograd.backward(
                [result for result, _ in pairs],
                [gradient for _, gradient in pairs],
                retain_graph=request.keeps,
            )
        of_inputs = [each.grad for each in graph.inputs]
        for each in graph.inputs:
            each.grad = None
        return Differentiated(model.present(), of_inputs)

    def prepare(self) -> None:
        """Clear the gradients of the model that computed last, for its backward pass."""
        if self._graphs:
            self._graphs[next(reversed(self._graphs))].model.clear_row()
