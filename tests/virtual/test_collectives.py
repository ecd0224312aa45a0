"""NCCL's process group, in ranks: every collective, each type it takes, groups of 2 to 8, against
what the host computes; and what comes of mistakes.

``ANYRIG_TEST_ENDINGS=50`` repeats the ends of worlds as often by hand.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from ranks import Outcome, names_of_cases, run_cases

ENDINGS = int(os.environ.get("ANYRIG_TEST_ENDINGS", "1"))

# What graphs, flight records and distributed tensors import, in seconds for each rank.
COMPILER = "sympy,torch._dynamo"

# What runs in one world: its files, its ranks, its settings.
WORLDS: dict[str, tuple[tuple[str, ...], int, dict[str, str]]] = {
    # Cards that add numbers of eight bits.
    "right": (
        ("moving", "reducing", "waiting", "grouping", "freeing"),
        8,
        {"ANYRIG_TEST_CARD": "H100-SXM", "imports": COMPILER},
    ),
    "wrong": (("refusing", "failing"), 4, {}),
    "worlds": (("gloo_on_cards", "initializing"), 3, {}),
    "registered": (("registering", "recorded_by_default"), 2, {}),
    "shape-only": (("shapes", "symmetric_shapes", "freeing"), 2, {"mode": "shape-only"}),
    "symmetric": (("symmetric",), 4, {}),
    "switched": (("multicast", "timing"), 2, {"ANYRIG_TEST_CARD": "H100-SXM"}),
    "recorded": (("recorded_flights",), 3, {"TORCH_FR_BUFFER_SIZE": "10", "imports": COMPILER}),
    "captured": (("captured_lists",), 3, {}),
    "watched": (("moving", "watching"), 3, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
}
# In their last cases a rank ends.
EXIT_CODES = {"wrong": [0, 0, 0, 7], "symmetric": [0, 0, 0, 7]}


@pytest.fixture(scope="module")
def outcome_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """What came of each world, which runs on first use."""

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
def test_ranks_end_well(outcome_of: Callable[[str], Outcome], world: str) -> None:
    outcome = outcome_of(world)
    size = WORLDS[world][1]
    assert outcome.exit_codes == EXIT_CODES.get(world, [0] * size), outcome.output
    assert outcome.output == ""


@pytest.mark.parametrize("ending", range(ENDINGS))
def test_a_world_may_end_with_its_groups(ending: int, tmp_path: Path) -> None:
    outcome = run_cases(["ending"], 3, tmp_path, mode="left")
    outcome.check("ending.case_leave_works_and_groups")
    assert outcome.exit_codes == [0] * 3, outcome.output
    assert outcome.output == ""
