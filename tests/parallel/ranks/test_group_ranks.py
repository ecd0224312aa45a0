"""What ranks do together on virtual GPUs; test_three_ranks.py runs the cases on the CPU."""

from __future__ import annotations

from functools import cache

import group_cases
import pytest
from on_ranks import World, run_cases

NAMES = [name for name in vars(group_cases) if name.startswith("case_")]
# With NCCL, the path of tensors, prefetching and the measuring of steps differ.
WORDS = ("mean", "gather", "prefetch", "gpus")
ON_GPUS = [
    *(name for name in NAMES if any(word in name for word in WORDS)),
    "case_training_is_that_of_the_global_batches",
    "case_training_again_gives_the_same_bits",
]


@cache
def world() -> World:
    return run_cases([f"group_cases.{case}" for case in ON_GPUS], 2, "2GiB+1GiB")


@pytest.mark.parametrize("case", ON_GPUS)
def test_in_a_group_on_gpus(case: str) -> None:
    failures = world()[f"group_cases.{case}"]
    assert not failures, "\n".join(f"rank {rank}: {text}" for rank, text in failures.items())
