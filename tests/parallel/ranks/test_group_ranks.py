"""What ranks do together on virtual GPUs; test_three_ranks.py runs the cases on the CPU."""

from __future__ import annotations

from functools import cache

import loader_cases
import message_cases
import metric_cases
import pytest
import share_cases
import training_cases
import waiting_cases
from on_ranks import World, cases_of, run_cases

CASES = [
    *cases_of(waiting_cases, message_cases, metric_cases),
    *cases_of(loader_cases, share_cases, training_cases),
]
# With NCCL, the path of tensors, prefetching and the measuring of steps differ.
WORDS = ("mean", "gather", "prefetch", "gpus")
ON_GPUS = [
    *(case for case in CASES if any(word in case for word in WORDS)),
    "training_cases.case_training_is_that_of_the_global_batches",
    "training_cases.case_training_again_gives_the_same_bits",
]


@cache
def world() -> World:
    return run_cases(ON_GPUS, 2, "2GiB+1GiB")


@pytest.mark.parametrize("case", ON_GPUS)
def test_in_a_group_on_gpus(case: str) -> None:
    failures = world()[case]
    assert not failures, "\n".join(f"rank {rank}: {text}" for rank, text in failures.items())
