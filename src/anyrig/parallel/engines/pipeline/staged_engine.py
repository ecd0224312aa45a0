"""What a module in stages does both in one process and over ranks."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ....errors import AnyrigError, SpreadError
from ...accumulation import Accumulation
from ...layout import Layout
from ...losses.checked_means import CheckedCalls
from ...losses.loss import Criterion, loss_for_target
from ...losses.mistakes import explain_call
from ...named_arguments import take_samples, take_target
from ...parts.call import Call, describe_call, may_pack
from ...parts.divided_dimension import Answer
from ...parts.outputs import join_outputs
from ...plans import Pipeline
from ..engine import Engine
from .chain import Chain
from .micro_batches import MicroBatch, MicroBatches
from .stage_table import StageTable
from .written_buffers import BufferWatch


@dataclass(frozen=True)
class GivenCall:
    """What a module in stages is called with.

    Attributes:
        loss: computed from the outputs and `target`; None for a call that returns the outputs.
        inputs: the positional arguments.
        kwargs: the keyword arguments, without those that are for anyrig.
        target: the target of the loss.
        samples: the caller's ``samples=``; None without it.
    """

    loss: Criterion | None
    inputs: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any
    samples: int | None


class StagedEngine(Engine):
    """A module in stages; see `PipelineEngine` and `RankPipelineEngine`, which compute calls.

    ::

        forward        refuses calls that are impossible
          └─ _compute  in the precision of the layout
               └─ _call  known layers; loss and target; the number of micro-batches
                    └─ _call_in_parts  once more as a whole if the forward pass writes a buffer

    A method of the module is called with the spread module as ``self``, so that ``self(x)`` in it
    computes in stages.

    Args:
        module: the module in stages.
        layout: how the module is spread, and why.
        loss: see `anyrig.spread`.
        plan: see `anyrig.Pipeline`.
        micro_batches: the number of micro-batches, and why.
    """

    _known_dimensions: dict[Hashable, Answer]
    _checked_modes: set[bool]  # modes of the module in which a forward pass writes no buffer
    _whole: str  # why the whole batch is one micro-batch: a loss or a buffer that is written
    _accumulation: Accumulation | None
    _checked: CheckedCalls

    def __init__(
        self,
        module: torch.nn.Module,
        layout: Layout,
        loss: Criterion | None,
        plan: Pipeline,
        micro_batches: MicroBatches,
    ) -> None:
        super().__init__(module, layout, loss)
        self._plan, self._micro_batches = plan, micro_batches

    def _begin(self) -> None:
        """Forget all earlier calls."""
        self._known_dimensions, self._checked_modes = {}, set()
        self._whole = self._micro_batches.refuse_loss(self._chain.whole_loss, self._pipelines)
        self._accumulation = Accumulation(self.module) if self.layout.accumulate else None
        self._checked = CheckedCalls()

    @property
    def _table(self) -> StageTable:
        plan = self.layout.pipeline
        assert plan is not None
        return plan

    def explain(self) -> Layout:
        """Return the layout, with the number of micro-batches for the module as it is now."""
        # Modes may have changed since: a layer in eval() does not need the whole batch.
        table = self._table.with_micro_batches(self._micro_batches, self.module, self._whole)
        return replace(self.layout, pipeline=table)

    def _compute(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a call returns: the loss if there is a target, else the outputs."""
        try:
            with self.layout.computing():
                return self._call(inputs, kwargs)
        except TypeError as error:
            if self.loss is not None:
                explain_call(error, self.module, inputs, kwargs)
            raise

    def _call(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        samples = take_samples(self.module, kwargs)
        loss, target = loss_for_target(self.module, self.loss, kwargs), None
        if loss is not None:
            kwargs = kwargs.copy()
            target = take_target(self.module, inputs, kwargs)
        self._chain.require_same()
        given = GivenCall(loss, *self._bring(inputs, kwargs, target), samples)
        number = self._micro_batches.number_for(self.module)
        if number == 1 or self._whole or self.module.training in self._checked_modes:
            number = 1 if self._whole else number
            return self._call_in_parts(number, given)
        watch = BufferWatch(self.module)
        result = self._call_watched(watch, number, given)
        written = self._find_written(watch)
        if written is None:
            self._checked_modes.add(self.module.training)
            return result
        watch.restore()
        self._whole = self._micro_batches.refuse_writes(written)
        return self._call_in_parts(1, given)

    def method(self, bound: Any, model: torch.nn.Module) -> Callable[..., Any]:
        """Return the method, with `model` as its ``self``."""

        @functools.wraps(bound)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return bound.__func__(model, *args, **kwargs)
            except RuntimeError as error:
                if isinstance(error, AnyrigError) or "device" not in str(error):
                    raise
                raise SpreadError(
                    f"{bound.__name__}() of a {type(self.module).__name__} in stages has called "
                    f"layers that lie on different devices ({error}). Call the whole module in it, "
                    "as self(x), or spread the module with loss= and call model(x, target=y)"
                ) from error

        return call

    @property
    def _pipelines(self) -> int:
        """The number of pipelines that compute a batch together."""
        return 1

    @property
    @abstractmethod
    def _chain(self) -> Chain:
        """The module as blocks."""

    def _bring(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], target: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Return arguments and target where the stages need them."""
        return inputs, kwargs, target

    def _call_watched(self, watch: BufferWatch, number: int, given: GivenCall) -> Any:
        """Return what `_call_in_parts` does; `watch` finds the buffers that the call writes."""
        return self._call_in_parts(number, given)

    def _find_written(self, watch: BufferWatch) -> str | None:
        """Return a description of a buffer that the forward pass has written, or None."""
        return watch.find_written()

    @abstractmethod
    def _call_in_parts(self, number: int, given: GivenCall) -> Any:
        """Return what a call with at most `number` micro-batches returns."""

    def _join(
        self,
        outputs: list[Any],
        parts: Sequence[MicroBatch],
        inputs: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        once_more: Callable[[int], Any],
    ) -> Any:
        """Return the outputs of the micro-batches as the output for the whole batch.

        ``once_more(samples)`` returns the output for the first samples.
        """
        call = Call(
            [part.samples for part in parts],
            self.layout.dim,
            lambda: describe_call(self.module, inputs, kwargs),
            once_more,
            self._known_dimensions,
            lambda: may_pack(self.module, (inputs, dict(kwargs))),
        )
        return join_outputs(outputs, self.layout.output_device, call)

    def _recomputes(self, parts: Sequence[MicroBatch]) -> Callable[[int], bool]:
        return lambda number: self._plan.recomputes(number, len(parts))
