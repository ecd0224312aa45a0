"""Each reason for an out-of-memory error at its bounds, of recordings that are written by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyrig.memory import Cause, Kind, Reason, SourceLine
from anyrig.memory.block import Block, Origin
from anyrig.memory.classify import Kinds
from anyrig.memory.device_record import DeviceRecord
from anyrig.memory.free_memory import FreeMemory
from anyrig.memory.kept_variables import KeptVariable
from anyrig.memory.operator_log import OperatorLog
from anyrig.memory.reason import find_reason
from anyrig.memory.timeline import Refusal, Timeline

GPU = torch.device("cuda", 0)
HERE, THERE = SourceLine("train.py", 7, "train"), SourceLine("train.py", 9, "train")
TENSOR = torch.ones(1, requires_grad=True).exp()
LOSSES = KeptVariable("losses", THERE, is_container=True, tensors=(TENSOR,) * 5)


def block(count: int, kind: Kind | None = None, address: int = 0, **origin: Any) -> Block:
    made = Block(address, count, 1, -1, has_tensor=True, kind=kind)
    made.origin = Origin("forward", "", origin.pop("line", HERE), **{"is_recorded": False} | origin)
    return made


def graph(count: int, call: int) -> Block:
    return block(count, Kind.ACTIVATIONS, is_recorded=True, call=call)


def reason_of(
    *blocks: Block,
    requested: int = 100,
    cached: int = 0,
    outside: int = 0,
    total: int | None = 10_000,
    phase: str = "forward",
    is_training: bool | None = True,
    is_recorded: bool = True,
    refused: str | None = None,
    variables: tuple[KeptVariable, ...] = (),
) -> Reason:
    allocated = sum(each.bytes for each in blocks)
    running = Origin(phase, "", HERE, is_recorded, is_training=is_training)
    refusal = Refusal(0, requested, (total or 0) - outside - allocated - cached)
    timeline = Timeline(
        GPU, blocks, allocated, allocated + cached, [allocated], [allocated + cached], [0.0], [1],
        {1: running}, [refusal],
    )  # fmt: skip
    record = DeviceRecord(timeline, Kinds(timeline, OperatorLog()), outside, total, refused)
    return find_reason(record, refusal, variables)


OTHER = block(600, Kind.OTHER)
GRAPHS = tuple(graph(200, call) for call in range(3))


@pytest.mark.parametrize(
    ("outside", "requested", "is_reason"),
    [(2500, 100, True), (2499, 100, False), (2500, 2500, True), (2500, 2501, False)],
)
def test_other_processes_hold_a_quarter_and_the_request(
    outside: int, requested: int, is_reason: bool
) -> None:
    reason = reason_of(OTHER, outside=outside, requested=requested)
    assert (reason.cause is Cause.OTHER_PROCESSES) is is_reason
    assert reason.bytes == (outside if is_reason else 600)
    unknown = reason_of(OTHER, outside=outside, total=None)
    assert unknown.cause is Cause.OTHER


@pytest.mark.parametrize(
    ("cached", "requested", "cause"),
    [
        (300, 300, Cause.FRAGMENTATION),  # a third of what is reserved
        (299, 299, Cause.KEPT_LOSSES),
        (300, 301, Cause.KEPT_LOSSES),
    ],
)
def test_a_third_that_is_free_comes_before_kept_graphs(
    cached: int, requested: int, cause: Cause
) -> None:
    losses = (LOSSES,)
    reason = reason_of(*GRAPHS, cached=cached, requested=requested, variables=losses)
    assert reason.cause is cause


def test_a_tenth_that_is_free_is_fragmentation() -> None:
    for used, cause in ((900, Cause.FRAGMENTATION), (901, Cause.OTHER)):
        reason = reason_of(block(used, Kind.OTHER), cached=100, requested=50)
        assert reason.cause is cause
        assert ("fragmentation" in reason.sentence) is (cause is Cause.FRAGMENTATION)


@pytest.mark.parametrize(
    ("free", "text"),
    [
        (FreeMemory(64, 20, 20, 30, 9000), "no fragmentation: less is free than was requested, 20"),
        (FreeMemory(64, 40, 30, 30, 9000), "As much as was requested is free, but not in one"),
        (FreeMemory(64, 249, 60, 2, 9000), "is full, with little fragmentation: 249 B in cached"),
        (FreeMemory(64, 249, 60, 2, 9000), "3 % of what PyTorch holds, and the largest free block"),
        (FreeMemory(64, 900, 60, 2, 9000), "fragmented, too: 900 B in cached blocks are free"),
        (FreeMemory(64, 900, 64, 2, 9000), "a free block of 64 B belongs to another stream"),
        (FreeMemory(64, 900, None, 2, 9000), "10 % of what PyTorch holds, and not in one block"),
    ],
)
def test_whether_a_device_is_full_or_fragmented(free: FreeMemory, text: str) -> None:
    assert text in free.describe()


def test_free_memory_of_the_requests_size_is_fragmentation() -> None:
    assert reason_of(OTHER, cached=100).cause is Cause.FRAGMENTATION
    assert reason_of(OTHER, cached=100).bytes == 100
    assert reason_of(OTHER, cached=99).cause is Cause.OTHER
    assert reason_of(OTHER, cached=100, phase="optimizer").cause is Cause.FRAGMENTATION


@pytest.mark.parametrize(
    ("blocks", "is_reason"),
    [
        (GRAPHS, True),
        (GRAPHS[:2], False),  # of fewer than three calls
        ((*GRAPHS, OTHER), True),
        ((*GRAPHS, block(601, Kind.OTHER)), False),  # another kind holds more
        ((graph(100, 0), graph(100, 1), graph(200, 2)), True),
        ((graph(100, 0), graph(100, 1), graph(201, 2)), False),  # the running call holds the rest
    ],
)
def test_graphs_of_three_calls(blocks: tuple[Block, ...], is_reason: bool) -> None:
    reason = reason_of(*blocks, variables=(LOSSES,))
    assert (reason.cause is Cause.KEPT_LOSSES) is is_reason
    if is_reason:
        assert reason.line == THERE
        assert reason.variable == "losses"
        assert "of 3 calls of the model" in reason.sentence
    assert reason_of(*blocks).cause in (Cause.ACTIVATIONS, Cause.OTHER)  # nothing keeps them


@pytest.mark.parametrize(
    ("variable", "cause"),
    [
        (KeptVariable("outputs", THERE, True, (TENSOR.expand(3),) * 3), Cause.KEPT_OUTPUTS),
        (KeptVariable("total", THERE, False, (TENSOR,)), Cause.KEPT_LOSSES),
        (KeptVariable("h", THERE, False, (TENSOR.expand(3),)), Cause.RECURRENT_STATE),
    ],
)
def test_what_keeps_the_graphs(variable: KeptVariable, cause: Cause) -> None:
    plain = KeptVariable("cache", HERE, True, (torch.ones(1),) * 9)
    reason = reason_of(*GRAPHS, variables=(plain, variable))
    assert (reason.cause, reason.variable) == (cause, variable.name)


@pytest.mark.parametrize(
    ("passes", "others", "is_reason"), [(3, 300, True), (2, 100, False), (3, 301, False)]
)
def test_tensors_of_three_passes_hold_half_of_the_memory(
    passes: int, others: int, is_reason: bool
) -> None:
    kept = [block(100, Kind.BATCH, line=THERE) for _ in range(passes)]
    reason = reason_of(*kept, block(others, Kind.PARAMETERS))
    assert (reason.cause is Cause.KEPT_TENSORS) is is_reason
    if is_reason:
        assert (reason.line, reason.bytes, reason.variable) == (THERE, 300, None)
        assert "one line allocated 3 tensors" in reason.sentence


def test_a_container_of_three_such_tensors_is_named() -> None:
    tensors = tuple(torch.ones(4) for _ in range(4))
    kept = [block(100, address=each.data_ptr(), line=THERE) for each in tensors]
    for count in (2, 3, 4):
        variable = KeptVariable("cache", HERE, True, tensors[:count])
        reason = reason_of(*kept, variables=(variable,))
        assert reason.cause is Cause.KEPT_TENSORS
        assert reason.variable == ("cache" if count >= 3 else None)
    one = KeptVariable("last", HERE, False, tensors[:3])
    assert reason_of(*kept, variables=(one,)).variable is None


def test_an_optimizer_step_needs_its_state_and_the_request() -> None:
    state = block(700, Kind.OPTIMIZER_STATE)
    reason = reason_of(state, OTHER, requested=300, phase="optimizer")
    assert (reason.cause, reason.bytes) == (Cause.OPTIMIZER_STATE, 1000)


def test_an_evaluation_has_activations_that_autograd_records() -> None:
    evaluated = {"is_training": False, "is_recorded": True}
    reason = reason_of(GRAPHS[0], OTHER, **evaluated)
    assert (reason.cause, reason.bytes) == (Cause.EVALUATION, 200)
    assert reason.cure == "evaluate it under torch.no_grad()"
    for change in ({"is_training": True}, {"is_training": None}, {"is_recorded": False}):
        assert reason_of(GRAPHS[0], OTHER, **{**evaluated, **change}).cause is Cause.OTHER
    assert reason_of(OTHER, **evaluated).cause is Cause.OTHER  # no activations


@pytest.mark.parametrize(
    ("refused", "requested", "is_reason"),
    [
        ("aten::_to_copy", 500, True),
        ("aten::copy_", 500, True),
        ("aten::_to_copy", 499, False),  # other tensors hold more
        ("aten::mul.Tensor", 500, False),
    ],
)
def test_a_copy_of_the_largest_batch(refused: str, requested: int, is_reason: bool) -> None:
    batch = block(100, Kind.BATCH)
    reason = reason_of(batch, OTHER, requested=requested, refused=refused)
    assert (reason.cause is Cause.BATCH) is is_reason
    assert reason.bytes == 600


def test_a_request_larger_than_the_device() -> None:
    assert reason_of(OTHER, requested=10_001).cause is Cause.REQUEST
    assert reason_of(OTHER, requested=10_001).bytes == 10_001
    assert reason_of(OTHER, requested=10_000).cause is Cause.OTHER
    assert reason_of(OTHER, requested=10_001, total=None).cause is Cause.OTHER


def test_otherwise_the_largest_kind_and_of_activations_the_line_of_most() -> None:
    reason = reason_of(block(300, Kind.PARAMETERS), block(200, Kind.GRADIENTS))
    assert (reason.cause, reason.line, reason.bytes) == (Cause.OTHER, HERE, 300)
    assert reason.sentence == "300 B are parameters"
    lines = [(100, HERE), (100, HERE), (150, THERE)]
    activations = [block(count, Kind.ACTIVATIONS, line=line) for count, line in lines]
    reason = reason_of(*activations)
    assert (reason.cause, reason.line, reason.bytes) == (Cause.ACTIVATIONS, HERE, 350)
    assert reason.sentence.endswith("hold 350 B, 200 B of them from one line")
    assert reason_of().cause is Cause.OTHER
