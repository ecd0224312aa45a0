"""Find the most likely reason why a device ran out of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..observe.source_line import SourceLine
from ..units import format_bytes
from .block import Block, Origin
from .device_record import DeviceRecord
from .free_memory import FRAGMENTED_SHARE
from .kept_variables import KeptVariable
from .kinds import Kind
from .timeline import Refusal

# Tensors of at least this many iterations count as collected in a loop.
FEWEST_PASSES = 3
_COPIES = ("aten::_to_copy", "aten::copy_")
# The kinds of blocks without a role. A condensed recording has classified its older blocks.
_WITHOUT_ROLE = (None, Kind.ACTIVATIONS, Kind.OTHER, Kind.TEMPORARIES)


_NO_GRAD = "evaluate it under torch.no_grad()"


class Cause(str, Enum):
    """The causes of an out-of-memory error."""

    REQUEST = "a request larger than the device"
    OTHER_PROCESSES = "other processes"
    FRAGMENTATION = "fragmentation"
    KEPT_LOSSES = "kept losses"
    KEPT_OUTPUTS = "kept outputs"
    RECURRENT_STATE = "a recurrent state with its graph"
    KEPT_TENSORS = "kept tensors"
    OPTIMIZER_STATE = "optimizer state"
    EVALUATION = "evaluation with gradients"
    BATCH = "the batch"
    ACTIVATIONS = "activations"
    OTHER = "the largest kind"


@dataclass(frozen=True)
class Reason:
    """The most likely reason why a device ran out of memory.

    Attributes:
        cause: the kind of reason.
        sentence: what happened, with figures, in one line.
        line: the line of the program to change; None if unknown.
        bytes: the bytes that the cause accounts for.
        cure: what to write instead, if the cause is a mistake in the program.
        variable: the variable that holds the bytes, if the cause is such a variable.
    """

    cause: Cause
    sentence: str
    line: SourceLine | None
    bytes: int
    cure: str | None = None
    variable: str | None = None


def find_reason(
    record: DeviceRecord, refusal: Refusal, variables: Sequence[KeptVariable]
) -> Reason:
    """Return the most likely reason why a device refused a request; see `_Rules`.

    Args:
        record: the recording of the device until it ran out of memory.
        refusal: the request.
        variables: the variables to which running functions add tensors, innermost function first.
    """
    return next(reason for reason in _Rules(record, refusal, variables).all() if reason is not None)


def blame_container(variable: KeptVariable, held_bytes: int, count: int) -> Reason:
    """Return the reason that `variable` holds `count` tensors, and more with every pass."""
    return Reason(
        Cause.KEPT_TENSORS,
        f"{variable.name} keeps {format_bytes(held_bytes)} in {count} tensors, more with every "
        "pass",
        variable.line,
        held_bytes,
        "remove the tensors that are no longer needed, or keep tensor.cpu() instead",
        variable.name,
    )


def blame_graphs(variable: KeptVariable, held_bytes: int, calls: int) -> Reason:
    """Return the reason that `variable` keeps the graphs of `calls` calls of a model."""
    cause = Cause.KEPT_OUTPUTS if variable.is_container else Cause.RECURRENT_STATE
    if variable.is_scalar:
        cause = Cause.KEPT_LOSSES
    subject, cure = variable.graph_cure
    keeps = f"keeps {format_bytes(held_bytes)} of {calls} calls of the model"
    sentence = f"{subject} {keeps}: {cure}"
    return Reason(cause, sentence, variable.line, held_bytes, cure, variable.name)


class _Rules:
    """The rules for each cause, in order. The first rule that applies gives the reason.

    ::

        other processes hold a quarter of the device, at least the request   other processes
        a third of the reserved memory is free, at least the request         fragmentation
        graphs of three or more calls of a model are alive                   kept losses, kept
                                                                             outputs, or a
                                                                             recurrent state
        one line's tensors of three or more passes hold half of the memory   kept tensors
        a tenth of the reserved memory is free, at least the request         fragmentation
        an optimizer step was running                                        optimizer state
        a module in evaluation mode was running, recorded by autograd        evaluation
        a copy to the device was running, and batches are the largest kind   the batch
        the request is larger than the device                                the request
        otherwise                                                            the largest kind
    """

    def __init__(
        self, record: DeviceRecord, refusal: Refusal, variables: Sequence[KeptVariable]
    ) -> None:
        self._record = record
        self._refusal = refusal
        self._variables = variables
        timeline = record.timeline
        self._blocks = [b for b in timeline.blocks if b.is_alive_at(refusal.position)]
        self._kinds: Counter[Kind] = Counter()
        for block in self._blocks:
            self._kinds[self._kind(block)] += block.bytes
        self._reserved = timeline.reserved_at(refusal.position)
        self._free = timeline.free_at(refusal)
        last = max(timeline.origins, default=0)
        self._origin = timeline.origins.get(last, Origin(None, None, None, False))
        self._requested = format_bytes(refusal.requested_bytes)

    def all(self) -> Sequence[Reason | None]:
        return (
            self._other_processes(),
            self._fragmentation(least=1 / 3),
            self._kept_graphs(),
            self._kept_tensors(),
            self._fragmentation(least=FRAGMENTED_SHARE),
            self._optimizer_state(),
            self._evaluation(),
            self._batch(),
            self._request(),
            self._largest_kind(),
        )

    def _kind(self, block: Block) -> Kind:
        return self._record.kinds.kind_at(block, self._refusal.position)

    def _other_processes(self) -> Reason | None:
        total = self._record.total_bytes
        if total is None:
            return None
        outside = total - self._refusal.free_bytes - self._reserved
        if outside < total / 4 or outside < self._refusal.requested_bytes:
            return None
        return Reason(
            Cause.OTHER_PROCESSES,
            f"other processes hold {format_bytes(outside)} of the device's {format_bytes(total)}",
            self._origin.line,
            outside,
        )

    def _fragmentation(self, least: float) -> Reason | None:
        if not self._free.would_suffice or self._free.share < least:
            return None
        return Reason(
            Cause.FRAGMENTATION,
            self._free.describe_fragmentation(),
            self._origin.line,
            self._free.cached_bytes,
        )

    def _kept_graphs(self) -> Reason | None:
        kept = [
            block
            for block in self._blocks
            if block.origin is not None and block.origin.is_recorded and block.kind in _WITHOUT_ROLE
        ]
        calls: Counter[int] = Counter()
        for block in kept:
            assert block.origin is not None
            calls[block.origin.call] += block.bytes
        count = calls.total()
        # A list of losses whose graphs are used up keeps little: the running call holds the rest.
        of_others = count - max(calls.values(), default=0)
        if len(calls) < FEWEST_PASSES or count < self._largest_other(Kind.ACTIVATIONS):
            return None
        if of_others < count / 2:
            return None
        for variable in self._variables:
            if not variable.has_graphs:
                continue
            return blame_graphs(variable, count, min(len(calls), variable.count_calls()))
        return None

    def _kept_tensors(self) -> Reason | None:
        by_line: dict[SourceLine, list[Block]] = {}
        for block in self._blocks:
            line = block.origin.line if block.origin is not None else None
            is_kept = block.has_tensor and block.kind in (*_WITHOUT_ROLE, Kind.BATCH)
            if line is not None and is_kept and not (block.origin and block.origin.is_recorded):
                by_line.setdefault(line, []).append(block)
        if not by_line:
            return None
        line, kept = max(by_line.items(), key=lambda item: sum(block.bytes for block in item[1]))
        count = sum(block.bytes for block in kept)
        passes = len({id(block.origin) for block in kept})  # each operator has its own
        allocated = self._record.timeline.allocated_at(self._refusal.position)
        if passes < FEWEST_PASSES or count < allocated / 2:
            return None
        addresses = {block.data_address or block.address for block in kept}
        for variable in self._variables:
            held = {tensor.untyped_storage().data_ptr() for tensor in variable.tensors}
            if variable.is_container and len(held & addresses) >= FEWEST_PASSES:
                return blame_container(variable, count, len(held))
        return Reason(
            Cause.KEPT_TENSORS,
            f"one line allocated {passes} tensors that are still alive, {format_bytes(count)} in "
            "total",
            line,
            count,
        )

    def _optimizer_state(self) -> Reason | None:
        if self._origin.phase != "optimizer":
            return None
        count = self._kinds[Kind.OPTIMIZER_STATE] + self._refusal.requested_bytes
        return Reason(
            Cause.OPTIMIZER_STATE,
            f"the optimizer's state needs at least {format_bytes(count)}",
            self._origin.line,
            count,
        )

    def _evaluation(self) -> Reason | None:
        origin = self._origin
        count = self._kinds[Kind.ACTIVATIONS]
        if origin.is_training is not False or not origin.is_recorded or not count:
            return None
        return Reason(
            Cause.EVALUATION,
            f"a model in evaluation mode keeps {format_bytes(count)} of activations for a backward "
            f"pass: {_NO_GRAD}",
            origin.line,
            count,
            _NO_GRAD,
        )

    def _batch(self) -> Reason | None:
        count = self._kinds[Kind.BATCH] + self._refusal.requested_bytes
        if self._record.refused not in _COPIES or count < self._largest_other(Kind.BATCH):
            return None
        return Reason(
            Cause.BATCH,
            f"the batch needs {format_bytes(count)}",
            self._origin.line,
            count,
        )

    def _request(self) -> Reason | None:
        total, requested = self._record.total_bytes, self._refusal.requested_bytes
        if total is None or requested <= total:
            return None
        return Reason(
            Cause.REQUEST,
            f"one request of {self._requested} is larger than the device's {format_bytes(total)}",
            self._origin.line,
            requested,
        )

    def _largest_kind(self) -> Reason:
        kind = max(self._kinds, key=self._kinds.__getitem__, default=Kind.TEMPORARIES)
        count = self._kinds[kind]
        if kind is not Kind.ACTIVATIONS:
            sentence = f"{format_bytes(count)} are {kind.value}"
            return Reason(Cause.OTHER, sentence, self._origin.line, count)
        by_line: Counter[SourceLine | None] = Counter()
        for block in self._blocks:
            if block.origin is not None and self._kind(block) is kind:
                by_line[block.origin.line] += block.bytes
        sentence = f"activations for a backward pass hold {format_bytes(count)}"
        if not by_line:  # all of them are older than the recording
            return Reason(Cause.ACTIVATIONS, sentence, self._origin.line, count)
        line, line_bytes = by_line.most_common(1)[0]
        sentence += f", {format_bytes(line_bytes)} of them from one line"
        return Reason(Cause.ACTIVATIONS, sentence, line, count)

    def _largest_other(self, kind: Kind) -> int:
        return max((n for other, n in self._kinds.items() if other is not kind), default=0)
