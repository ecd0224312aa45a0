"""Cases of many files over gloo, in one group of three real processes, which start only once."""

from __future__ import annotations

from functools import cache

import exact_cases
import loader_cases
import message_cases
import metric_cases
import pytest
import share_cases
import test_accumulation
import test_every_combination
import test_precision
import training_cases
import waiting_cases
from on_ranks import World, cases_of, run_cases

from cpu_kernels import has_bfloat16_lstm, need_bfloat16_lstm

CASES = [
    *(f"test_every_combination.{case}" for case in test_every_combination.CASES),
    *(f"test_accumulation.{case}" for case in (*test_accumulation.RANK_CASES, "case_refusals")),
    *(f"test_precision.{case}" for case in (*test_precision.CASES, *test_precision.OTHERS)),
    *cases_of(exact_cases),
    "output_cases.case_gradients_of_inputs_are_those_of_what_is_returned",
    "weight_cases.case_models_follow_each_other",
    *cases_of(waiting_cases, message_cases, metric_cases, loader_cases),
    *(case for case in cases_of(share_cases, training_cases) if "gpus" not in case),
]


def needs_bfloat16_lstm(case: str) -> bool:
    return case.startswith("test_precision.") and "LSTM" in case


@cache
def world() -> World:
    has_lstm = has_bfloat16_lstm()
    return run_cases([case for case in CASES if has_lstm or not needs_bfloat16_lstm(case)], 3)


@pytest.mark.parametrize("case", CASES)
def test_on_the_cpu(case: str) -> None:
    if needs_bfloat16_lstm(case):
        need_bfloat16_lstm()
    failures = world()[case]
    assert not failures, "\n".join(f"rank {rank}: {text}" for rank, text in failures.items())
