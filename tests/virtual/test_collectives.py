"""NCCL's process group on several ranks: every collective with each dtype in groups of 2 to 8,
compared with the CPU, and the errors of wrong calls.

``ANYRIG_TEST_ENDINGS=50`` repeats the test of exiting worlds 50 times.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from ranks import Outcome, names_of_cases, run_cases

ENDINGS = int(os.environ.get("ANYRIG_TEST_ENDINGS", "1"))

# CUDA graphs, flight records and DTensors import these, which takes seconds on each rank.
COMPILER = "sympy,torch._dynamo"

# For each world: its files, its number of ranks, its settings.
WORLDS: dict[str, tuple[tuple[str, ...], int, dict[str, str]]] = {
    # GPUs that add float8.
    "correct": (("moving", "reducing"), 8, {"ANYRIG_TEST_GPU": "H100-SXM"}),
    # Neither the dtype nor more ranks matter to these; a mesh of 2 by 3 ranks has unequal sides.
    "works": (
        ("waiting", "grouping", "freeing", "counting", "gathering_single"),
        6,
        {"imports": COMPILER},
    ),
    "errors": (("refusing", "failing"), 4, {}),
    # The class that "nccl" meant before PyTorch 2.15.
    "legacy": (("refusing", "grouping", "registering"), 4, {"TORCH_DIST_USE_NCCL2": "0"}),
    "initialized": (("gloo_on_gpus", "initializing", "second_class"), 3, {}),
    "registered": (("registering", "recorded_by_default"), 2, {}),
    "shape-only": (
        ("shapes", "symmetric_shapes", "freeing", "reduced_gradients", "objects_without_data"),
        2,
        {"mode": "shape-only"},
    ),
    "symmetric": (("symmetric_operators", "symmetric"), 4, {}),
    "nvswitch": (
        ("buffers", "multicast", "timing", "estimating"),
        2,
        {"ANYRIG_TEST_GPU": "H100-SXM"},
    ),
    "recorded": (("recorded_flights",), 3, {"TORCH_FR_BUFFER_SIZE": "10", "imports": COMPILER}),
    "captured": (("captured_lists",), 3, {}),
    "debug": (("moving", "watching"), 3, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
}
# A rank exits in the last case of these worlds.
EXIT_CODES = {"errors": [0, 0, 0, 7], "symmetric": [0, 0, 0, 7]}


@pytest.fixture(scope="module")
def outcome_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """A function that returns the outcome of a world and runs it on first use."""

    @cache
    def outcome(world: str) -> Outcome:
        files, size, settings = WORLDS[world]
        return run_cases(files, size, tmp_path_factory.mktemp(world), **settings)

    return outcome


@pytest.mark.parametrize(
    ("world", "case"),
    [
        (world, f"{file}.{case}")
        for world, (files, _, _) in WORLDS.items()
        for file in files
        for case in names_of_cases(file)
    ],
)
def test_collective(outcome_of: Callable[[str], Outcome], world: str, case: str) -> None:
    outcome_of(world).check(case)


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_exit_without_output(outcome_of: Callable[[str], Outcome], world: str) -> None:
    outcome = outcome_of(world)
    size = WORLDS[world][1]
    assert outcome.exit_codes == EXIT_CODES.get(world, [0] * size), outcome.output
    assert outcome.output == ""


@pytest.mark.parametrize("ending", range(ENDINGS))
def test_a_world_may_exit_without_destroying_its_groups(ending: int, tmp_path: Path) -> None:
    outcome = run_cases(["ending"], 3, tmp_path, mode="left")
    outcome.check("ending.case_exit_with_works_and_groups")
    assert outcome.exit_codes == [0] * 3, outcome.output
    assert outcome.output == ""
