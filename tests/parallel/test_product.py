"""The product of batches, outputs, training steps, devices and sample counts: equal, or refused.

In each case the gradients are those of one device to 1e-9, or the first step is refused, on every
rank, for a reason that `product_reasons` lists. `make test-sweep` runs more cases, and prints how
many were refused for which reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from product_axes import PROCESSES
from product_cases import EQUAL, NO_MEANING, Case, pairwise, run_case, sample
from product_ranks import FAILED, outcomes
from product_reasons import fault_of, reason_of

IN_ONE_PROCESS = ("1", "2", "3 as 3:2:1", "pipeline", *PROCESSES)
OVER_RANKS = ("ranks", "shards", "pipeline over ranks")
SWEPT = {
    "1": 300,
    "2": 500,
    "3 as 3:2:1": 500,
    "pipeline": 350,
    **dict.fromkeys(PROCESSES, 400),
    "ranks": 400,
    "shards": 200,
    "pipeline over ranks": 200,
}


def _run(case: Case) -> list[str]:
    try:
        return [run_case(case)]
    except Exception as error:
        return [f"{FAILED}{type(error).__name__}: {error}"]


def _check(found: dict[Case, list[str]], faults: Iterable[str] = ()) -> Counter[str]:
    """Count the cases by result; fail if one is neither equal nor refused for a reason."""
    counts: Counter[str] = Counter(f"fault: {fault}" for fault in faults)
    wrong = []
    for case, heard in found.items():
        if set(heard) <= {EQUAL} or set(heard) <= {NO_MEANING}:
            counts[heard[0]] += 1
            continue
        failed = any(message.startswith(FAILED) for message in heard)
        reasons = [None if failed else reason_of(case, message) for message in heard]
        if None in reasons:
            wrong.append(f"{case}\n    " + "\n    ".join(heard))
        else:
            # That the other rank has refused is no reason of its own.
            counts["refused: " + next((r for r in reasons if r and "other rank" not in r), "")] += 1
    assert not wrong, f"{len(wrong)} of {len(found)} cases:\n" + "\n".join(wrong)
    return counts


def _print(devices: str, counts: Counter[str]) -> None:
    print(f"\n{devices}: {counts.total()} cases")
    for text, count in counts.most_common():
        print(f"  {count:5}  {text}")


@pytest.mark.gpus(3)
@pytest.mark.parametrize("devices", IN_ONE_PROCESS)
def test_pairs_in_one_process(devices: str) -> None:
    cases = [case for case in pairwise() if case.devices == devices and not fault_of(case)]
    # Pipelines refuse many outputs, and processes many batches.
    least = len(cases) / (5 if devices in ("pipeline", *PROCESSES) else 2)
    assert _check({case: _run(case) for case in cases})[EQUAL] > least


@pytest.mark.parametrize("devices", OVER_RANKS)
def test_pairs_over_ranks(devices: str) -> None:
    cases = [case for case in pairwise() if case.devices == devices and not fault_of(case)]
    # Which pairs meet in a case is drawn anew with each value of an axis.
    least = len(cases) / (8 if devices.startswith("pipeline") else 3)
    assert _check(outcomes(cases))[EQUAL] > least


@pytest.mark.sweep
@pytest.mark.gpus(3)
@pytest.mark.parametrize("devices", SWEPT)
def test_sample_of_the_product(devices: str) -> None:
    chosen = sample(SWEPT[devices], [devices])
    cases = [case for case in chosen if not fault_of(case)]
    is_here = devices in IN_ONE_PROCESS
    found = {case: _run(case) for case in cases} if is_here else outcomes(cases)
    _print(devices, _check(found, filter(None, map(fault_of, chosen))))


def test_pairs_have_every_pair_of_values() -> None:
    whole = {(i, a, j, b) for case in sample(10**6, SWEPT) for i, a in enumerate(case)
             for j, b in enumerate(case) if i < j}  # fmt: skip
    covered = {(i, a, j, b) for case in pairwise() for i, a in enumerate(case)
               for j, b in enumerate(case) if i < j}  # fmt: skip
    assert whole <= covered
