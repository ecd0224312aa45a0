"""What ranks do together, in groups of real processes: on the CPU, and on virtual GPUs."""

from __future__ import annotations

from functools import cache

import group_cases
import pytest
from on_ranks import World, run_cases

NAMES = [name for name in vars(group_cases) if name.startswith("case_")]
CASES = [name for name in NAMES if "cards" not in name]
# With NCCL what differs is where tensors travel, prefetching, and what a step is measured by.
WORDS = ("mean", "gather", "prefetch", "cards")
ON_GPUS = [name for name in NAMES if any(word in name for word in WORDS)]
TRAINING = [
    "case_training_is_that_of_the_global_batches",
    "case_training_again_gives_the_same_bits",
]
GROUPS: dict[str, tuple[list[str], int, str | None]] = {
    "cpu": (CASES, 3, None),
    "nccl": ([*ON_GPUS, *TRAINING], 2, "2GiB+1GiB"),
}


@cache
def world_of(group: str) -> World:
    names, ranks, virtual = GROUPS[group]
    return run_cases("group_cases", names, ranks, virtual)


@pytest.mark.parametrize(
    ("group", "case"), [(group, case) for group, (cases, *_) in GROUPS.items() for case in cases]
)
def test_in_a_group(group: str, case: str) -> None:
    failures = world_of(group)[case]
    assert not failures, "\n".join(f"rank {rank}: {text}" for rank, text in failures.items())
