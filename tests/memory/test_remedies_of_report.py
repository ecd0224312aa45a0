"""The report of an out-of-memory error lists what would save memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from anyrig.memory.free_memory import FreeMemory
from anyrig.memory.kinds import Kind
from anyrig.memory.moment import Holding, Moment
from anyrig.memory.reason import Cause, Reason
from anyrig.memory.recompute.blocks import write_names
from anyrig.memory.recompute.forward import recompute_blocks
from anyrig.memory.remedies import find_remedies

ACTIVATIONS = Reason(Cause.ACTIVATIONS, "", None, 0)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(11))


def holding(count: int, kind: Kind, module: str | None = None, phase: str = "forward") -> Holding:
    return Holding(count, kind, None, module, None, phase)


def moment(*holdings: Holding, phase: str | None = "forward") -> Moment:
    count = sum(each.bytes for each in holdings)
    return Moment(count, count, None, phase, None, None, holdings)


FULL = (
    holding(400, Kind.ACTIVATIONS, "layers.0.inner"),
    holding(300, Kind.ACTIVATIONS, "layers.1"),
    holding(200, Kind.ACTIVATIONS, "layers.10"),
    holding(100, Kind.ACTIVATIONS, "head"),
    holding(50, Kind.ACTIVATIONS, None),
    holding(70, Kind.BATCH),
    holding(60, Kind.PARAMETERS),
    holding(61, Kind.GRADIENTS),
    holding(120, Kind.OPTIMIZER_STATE),
    holding(80, Kind.TEMPORARIES, phase="optimizer"),
    holding(90, Kind.TEMPORARIES, phase="forward"),
)
SHARDED = "parameters, gradients and optimizer sharded over {} GPUs"


def found(phase: str | None, gpu_count: int, reason: Reason = ACTIVATIONS) -> dict[str, int]:
    remedies = find_remedies(moment(*FULL, phase=phase), reason, [Model()], gpu_count)
    assert [*remedies] == sorted(remedies, key=lambda each: -each.most_bytes)
    return {each.name: each.most_bytes for each in remedies}


def test_each_saves_a_part_of_what_is_held() -> None:
    of_calls = {
        "offload": 1050,
        "half the batch": 560,
        "mixed precision": 525,
        "recomputation": 500,  # the largest of the blocks is held at a time
    }
    assert found("forward", 4) == {
        **of_calls,
        "gradients set to None": 61,
        SHARDED.format(4): 180,
    }
    assert found("optimizer", 1) == {**of_calls, "fused optimizer": 80, SHARDED.format(2): 120}
    assert found("backward", 2) == {**of_calls, SHARDED.format(2): 120}


def test_the_blocks_to_recompute_are_named() -> None:
    remedies = find_remedies(moment(*FULL), ACTIVATIONS, [Model(), Model()], 1)
    (advice,) = (each.advice for each in remedies if each.name == "recomputation")
    assert advice == 'anyrig.memory.recompute_blocks(model, [f"layers.{i}" for i in range(11)])'


@pytest.mark.parametrize("means", ["anyrig", "transformers", "torch"])
def test_blocks_that_are_recomputed_are_not_proposed(means: str) -> None:
    model = Model()
    for place, block in enumerate(model.layers):
        if place == 9:  # the last two are not recomputed yet
            last = find_remedies(moment(*FULL), ACTIVATIONS, [model], 1)
        if means == "anyrig":
            recompute_blocks(model, [f"layers.{index}" for index in range(place + 1)])
        elif means == "transformers":
            block.gradient_checkpointing = True  # type: ignore[assignment]
        else:
            model.layers[place] = checkpoint_wrapper(block)
    assert "recomputation" in {each.name for each in last}
    names = {each.name for each in find_remedies(moment(*FULL), ACTIVATIONS, [model], 1)}
    assert "recomputation" not in names
    assert "offload" in names


def test_a_batch_that_is_being_copied_counts() -> None:
    assert found("outside", 1, Reason(Cause.BATCH, "", None, 4000))["half the batch"] == 2525


@pytest.mark.parametrize("cause", [Cause.FRAGMENTATION, Cause.ACTIVATIONS])
def test_fragments_can_be_joined_if_they_would_hold_the_request(cause: Cause) -> None:
    reason = Reason(cause, "", None, 0)
    enough = FreeMemory(777, 777, 70, 0, 10_000)
    joined = find_remedies(moment(*FULL), reason, [], 1, free=enough)
    assert {each.name: each.most_bytes for each in joined}["expandable segments"] == 777
    short = find_remedies(moment(*FULL), reason, [], 1, free=replace(enough, requested_bytes=778))
    assert "expandable segments" not in {each.name for each in short}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_no_remedy_for_a_model_that_has_it(dtype: torch.dtype) -> None:
    remedies = find_remedies(moment(*FULL), ACTIVATIONS, [Model().to(dtype)], 1)
    assert "mixed precision" not in {each.name for each in remedies}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_no_remedy_for_a_program_that_computes_in_it(dtype: torch.dtype) -> None:
    def names(*tensors: torch.Tensor) -> set[str]:
        found = find_remedies(moment(*FULL), ACTIVATIONS, [Model()], 1, tensors=tensors)
        return {each.name for each in found}

    batch, weight = torch.ones(4, dtype=dtype), torch.ones(4, dtype=dtype, requires_grad=True)
    assert "mixed precision" in names(batch, torch.ones(4, requires_grad=True) * 2)
    assert "mixed precision" not in names(batch, weight * 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_advice_of_mixed_precision_has_the_dtype_of_the_device(dtype: torch.dtype) -> None:
    remedies = find_remedies(moment(*FULL), ACTIVATIONS, [Model()], 1, half=dtype)
    (advice,) = (each.advice for each in remedies if each.name == "mixed precision")
    assert advice.startswith(f'with torch.autocast("cuda", {dtype}): output = model(…)')
    assert ("GradScaler" in advice) is (dtype == torch.float16)


def test_less_than_one_percent_is_not_listed() -> None:
    holdings = holding(10_000, Kind.OTHER), holding(99, Kind.ACTIVATIONS)
    assert find_remedies(moment(*holdings), ACTIVATIONS, [], 1) == ()
    holdings = holding(9_900, Kind.OTHER), holding(100, Kind.ACTIVATIONS)
    (remedy,) = find_remedies(moment(*holdings), ACTIVATIONS, [], 1)
    assert remedy.name == "offload"


def test_a_mistake_has_one_cure() -> None:
    reason = Reason(Cause.KEPT_LOSSES, "", None, 2**20, "add loss.item()", "total")
    (remedy,) = find_remedies(moment(*FULL), reason, [Model()], 1)
    assert str(remedy) == "  up to 1.00 MiB: release total: add loss.item()"
    reason = Reason(Cause.EVALUATION, "", None, 2**20, "use torch.no_grad()")
    (remedy,) = find_remedies(moment(*FULL), reason, [Model()], 1)
    assert str(remedy) == "  up to 1.00 MiB: the line above: use torch.no_grad()"


def test_nothing_of_this_program_frees_what_others_hold() -> None:
    reason = Reason(Cause.OTHER_PROCESSES, "", None, 2**20)
    assert find_remedies(moment(*FULL), reason, [Model()], 1) == ()


@pytest.mark.parametrize(
    ("names", "expression"),
    [
        (["layers.0", "layers.1", "layers.2"], '[f"layers.{i}" for i in range(3)]'),
        (["a.8.b", "a.9.b", "a.10.b"], '[f"a.{i}.b" for i in range(8, 11)]'),
        (["t5.0", "t5.1", "t5.2"], '[f"t5.{i}" for i in range(3)]'),
        (["a.0.b.0", "a.0.b.1", "a.1.b.0"], '["a.0.b.0", "a.0.b.1", "a.1.b.0"]'),
        (["layers.0", "layers.2", "layers.3"], '["layers.0", "layers.2", "layers.3"]'),
        (["layers.0", "layers.1"], '["layers.0", "layers.1"]'),
    ],
)
def test_names_are_written_as_python(names: list[str], expression: str) -> None:
    assert write_names(names) == expression
    assert eval(expression) == names


@pytest.mark.gpus(1)
def test_sharded_parameters_are_not_sharded_again() -> None:
    class Shard(nn.Parameter):
        def to_local(self) -> torch.Tensor:
            return self

    model = Model()
    model.layers[0].inner.weight = Shard(torch.zeros(2, 2))  # type: ignore[union-attr]
    remedies = find_remedies(moment(*FULL), ACTIVATIONS, [model], 1)
    assert SHARDED.format(2) not in {each.name for each in remedies}
