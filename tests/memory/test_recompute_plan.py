"""`checkpoint_blocks` keeps a step within its budget, in the least time, and changes no result."""

from __future__ import annotations

import copy
import gc
import json
import random
import re
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from recomputed_models import Training, measured
from recomputed_waves import Wave, peak_with, waves
from test_batch_size import assert_equal
from torch import Tensor, nn

import anyrig
from anyrig.errors import LaunchError, MemoryTrackingError
from anyrig.memory import RecomputePlan, checkpoint_blocks
from forked_programs import run_forked

MIB = 2**20
GIB = 2**30


@pytest.mark.sweep
def test_twenty_budgets_against_every_choice() -> None:
    program = "import recomputed_models; recomputed_models.compare()"
    ended = run_forked("-c", program, cwd=Path(__file__).parent)
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(lines) == 2
    for found in lines:
        every = {tuple(chosen): measured for chosen, measured in found["every"]}
        assert len(every) == 16
        for peak_bytes, _, predicted_bytes in every.values():
            # Workspaces of convolutions belong to no block.
            assert 0.998 * peak_bytes <= predicted_bytes <= 1.01 * peak_bytes
        assert max(each[0] for each in every.values()) > 1.3 * every[0, 1, 2, 3][0] > GIB / 2
        assert len(found["choices"]) == 20
        for budget_bytes, chosen in found["choices"]:
            peak_bytes, seconds, _ = every[tuple(chosen)]
            assert 0.998 * peak_bytes <= budget_bytes
            best = min(seconds for peak, seconds, _ in every.values() if peak <= budget_bytes)
            assert seconds <= 1.001 * best
        assert len({tuple(chosen) for _, chosen in found["choices"]}) > 4
        for budget_bytes, chosen, peak_bytes, next_peak_bytes in found["plans"]:
            # A choice whose measured peak is above the budget is replaced by more blocks.
            (first,) = [blocks for budget, blocks in found["choices"] if budget == budget_bytes]
            assert set(first) <= set(chosen)
            assert every[tuple(chosen)][0] <= peak_bytes <= budget_bytes
            assert next_peak_bytes <= budget_bytes


def random_states() -> list[Any]:
    return [torch.get_rng_state(), torch.cuda.get_rng_state(), random.getstate()]


@pytest.mark.gpus(1)
def test_the_program_is_as_before_but_for_the_plan() -> None:
    training = Training("small resnet")
    training.step()
    training.model.stage1[0].eval()
    state = copy.deepcopy([training.model.state_dict(), training.optimizer.state_dict()])
    modes = [module.training for module in training.model.modules()]
    numbers = random_states()
    plan = checkpoint_blocks(training.model, 2**34, training.step)
    assert plan.blocks == ()
    assert_equal([training.model.state_dict(), training.optimizer.state_dict()], state)
    assert_equal(random_states(), numbers)
    assert [module.training for module in training.model.modules()] == modes
    assert all(parameter.grad is None for parameter in training.model.parameters())
    assert all("forward" not in vars(module) for module in training.model.modules())
    assert all(
        not module._forward_pre_hooks and not module._forward_hooks
        for module in training.model.modules()
    )
    with pytest.raises(MemoryTrackingError, match=r"at least .*, with \d of 4 blocks recomputed"):
        checkpoint_blocks(training.model, 1000, training.step)
    assert_equal([training.model.state_dict(), training.optimizer.state_dict()], state)
    assert all("forward" not in vars(module) for module in training.model.modules())


class Growth(nn.Module):
    """Keeps two tensors of the size of its input, and not its input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return (x.exp() * self.scale).cos()


@pytest.mark.gpus(1)
def test_what_a_plan_says() -> None:
    model, _, step = waves()
    highest = peak_with(model, [], step)
    lower = peak_with(model, ["waves.0"], step)
    plan = checkpoint_blocks(model, lower, step)
    (name,) = plan.blocks
    assert (plan.peak_bytes, plan.kept_bytes) == (lower, highest)
    assert plan.budget_bytes == lower
    assert [cost.name for cost in plan.costs] == [f"waves.{number}" for number in range(4)]
    assert plan.costs[1].saved_bytes == 2 * MIB
    assert [cost.name for cost in plan.costs if cost.recomputed] == [name]
    (seconds,) = [cost.seconds for cost in plan.costs if cost.recomputed]
    assert plan.extra_seconds == seconds > 0
    assert 0 < plan.extra_percent < 20
    text = str(plan)
    assert "recompute 1 of 4 blocks: the least time within" in text
    assert f"of {lower / MIB:.2f} MiB, without: {highest / MIB:.2f} MiB" in text
    assert "ms more per step" in text
    assert re.search(rf"{name}  saves +2\.00 MiB  costs +0\.0\d ms  recomputed\n", text)
    assert text.count("ms  kept") == 3
    plan.remove()
    assert peak_with(model, [], step) == highest
    reference = weakref.ref(model)
    del model, step
    gc.collect()
    assert reference() is None
    plan.remove()


@pytest.mark.gpus(1)
def test_the_input_that_a_recomputed_block_keeps_is_counted() -> None:
    model, _, step = waves()
    model.waves = nn.ModuleList(Growth() for _ in range(4)).cuda()
    plan = checkpoint_blocks(model, 2**34, step)
    assert [cost.saved_bytes // MIB for cost in plan.costs[1:]] == [1, 1, 1]
    lowest = peak_with(model, [f"waves.{number}" for number in range(4)], step)
    assert checkpoint_blocks(model, lowest, step).peak_bytes <= lowest


@pytest.mark.gpus(1)
def test_a_plan_replaces_the_earlier_one() -> None:
    model, _, step = waves()
    highest = peak_with(model, [], step)
    lowest = peak_with(model, ["waves.0", "waves.1", "waves.2", "waves.3"], step)
    assert checkpoint_blocks(model, lowest, step).blocks != ()
    assert checkpoint_blocks(model, highest, step).blocks == ()
    assert peak_with(model, [], step) == highest


@pytest.mark.gpus(1)
def test_a_step_that_does_not_fit_on_the_gpu_without_recomputation() -> None:
    model, _, step = waves(8, 2**20)  # 8 MiB or more for each of 8 blocks
    gc.collect()
    torch.cuda.empty_cache()
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    limit_bytes = torch.cuda.memory_reserved() + 66 * MIB
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total_bytes)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            step()
        plan = checkpoint_blocks(model, 2**40, step)
        assert 0 < len(plan.blocks) < 8
        assert plan.reason == "the least time that fits on cuda:0"
        step()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    plan.remove()
    assert plan.kept_bytes is not None
    assert plan.kept_bytes - MIB <= peak_with(model, [], step) <= plan.kept_bytes


@pytest.mark.gpus(2)
def test_refusals() -> None:
    for model, budget_bytes, words in (
        (
            nn.Sequential(Wave(), Wave()),
            1,
            "parameters of the model are on cpu, and the plan is for one GPU",
        ),
        (Wave().cuda(), 0, "budget_bytes=0 is not a number of bytes"),
        (nn.Linear(2, 2).cuda(), 1, "no repeated modules in a ModuleList or Sequential"),
        (nn.Sequential(Wave().to("cuda:0"), Wave().to("cuda:1")), 1, "are on cuda:0, cuda:1"),
    ):
        with pytest.raises(MemoryTrackingError, match=words):
            checkpoint_blocks(model, budget_bytes, lambda: None)


def test_several_ranks_are_refused() -> None:
    with pytest.raises(LaunchError, match="this process is one of 2 ranks, whose plans could dif"):
        anyrig.launch(_join_and_plan, (), rig="cpu", nproc_per_device=2)


def _join_and_plan() -> None:
    from anyrig.processes.group.membership import join_group

    join_group()
    checkpoint_blocks(nn.Sequential(nn.Linear(2, 2)), 2**30, lambda: None)


@pytest.mark.gpus(1)
def test_a_choice_that_takes_more_than_predicted_is_replaced() -> None:
    model, _, step = waves()
    highest = peak_with(model, [], step)
    calls = []

    def growing() -> None:
        calls.append(1)
        kept = torch.empty(3 * MIB if len(calls) > 3 else 1, dtype=torch.int8, device="cuda")
        step()
        del kept

    plan = checkpoint_blocks(model, highest, growing)
    assert len(plan.blocks) == 2
    assert len(calls) > 6
    assert plan.peak_bytes == measured(growing)[0] <= highest


def test_the_extra_time_is_a_part_of_the_step_without_recomputation() -> None:
    model = nn.Linear(1, 1)
    plan = RecomputePlan(
        (), "", 1, 1, None, 0.2, 1.2, (), torch.device("cuda", 0), weakref.ref(model)
    )
    assert plan.extra_percent == pytest.approx(20)
    assert "200.00 ms more per step, 20.0 %" in str(plan)


def test_the_program_of_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "memory.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (program,) = [each for each in programs if "checkpoint_blocks" in each]
    script = tmp_path / "train.py"
    script.write_text(f"{programs[0]}\n{program}\nprint(len(plan.blocks))")
    # A process of its own: memory that other tests hold would count against the budget.
    ended = run_forked("-m", "anyrig", "rehearse", "--rig", "A100-40GB", str(script))
    assert ended.returncode == 0, ended.stderr
    assert "of 6 blocks: the least time within 24.00 MiB" in ended.stdout
    assert 0 < int(ended.stdout.splitlines()[-1]) < 6
