"""The upper bound of memory, and what it makes of a rehearsal."""

from __future__ import annotations

from typing import Any

import pytest

from anyrig.planning.candidate import Verdict, judge
from anyrig.planning.memory_bound import spare_bytes
from anyrig.rehearsal.comparison.prices import Prices
from anyrig.rehearsal.comparison.rehearsed_apart import RehearsedApart
from anyrig.rehearsal.memory_bound import most_bytes
from anyrig.virtual.rig import VirtualRig

GIB = 2**30
MIB = 2**20
T4 = VirtualRig.parse("T4")


def peak(total: int, context: int = 0, collectives: int = 0) -> dict[str, Any]:
    return {
        "total_bytes": total,
        "context_bytes": context,
        "collective_bytes": collectives,
        "headroom_bytes": 16 * GIB - total,
    }


def facts(*totals: int, rate: float | None = None, **more: Any) -> dict[str, Any]:
    devices = [{"capacity_bytes": 16 * GIB, "peak": peak(total)} for total in totals]
    return {
        "devices": devices,
        "typical_step": {"seconds": 0.5, "samples_per_second": rate},
        **more,
    }


def test_five_percent_of_the_allocator_and_512_mib_are_added() -> None:
    assert most_bytes(10 * GIB, 0) == int(10.5 * GIB) + 512 * MIB
    assert most_bytes(10 * GIB, 2 * GIB) == int(10.4 * GIB) + 512 * MIB


def test_what_the_allocator_did_not_hold_is_left_out() -> None:
    outside = {"capacity_bytes": 16 * GIB, "peak": peak(10 * GIB, context=GIB, collectives=GIB)}
    assert spare_bytes({"devices": [outside]}) == 16 * GIB - most_bytes(10 * GIB, 2 * GIB)
    unknown = {**outside, "peak": {**peak(GIB), "context_bytes": None, "collective_bytes": None}}
    assert spare_bytes({"devices": [unknown]}) == 16 * GIB - most_bytes(GIB, 0)


def test_the_fullest_gpu_counts() -> None:
    assert spare_bytes(facts(10 * GIB, 2 * GIB)) == 5 * GIB
    assert spare_bytes({"devices": []}) is None
    assert spare_bytes({}) is None


def test_a_rehearsal_is_judged_by_its_upper_bound() -> None:
    def verdict(status: int, found: dict[str, Any] | None) -> Verdict:
        return judge(T4, 8, RehearsedApart(status, found, None), None).verdict

    assert verdict(0, facts(14 * GIB)) is Verdict.CERTAIN
    assert verdict(0, facts(15 * GIB)) is Verdict.LIKELY
    error = {"kind": "OutOfMemoryError", "text": "CUDA out of memory", "line": None}
    assert verdict(1, facts(15 * GIB, error=error)) is Verdict.NO
    assert verdict(1, facts(1 * GIB, error={**error, "kind": "ValueError"})) is Verdict.FAILED
    assert verdict(1, None) is Verdict.FAILED


def test_a_batch_gives_the_samples_that_no_loader_counts() -> None:
    prices = Prices("USD", {"T4": 3.6})

    def rate(found: dict[str, Any], samples: int | None = 8) -> float | None:
        ended = RehearsedApart(0, found, None)
        return judge(T4, 1, ended, prices, samples).found.samples_per_second

    assert rate(facts(GIB)) == pytest.approx(16)
    assert rate(facts(GIB), None) is None
    assert rate(facts(GIB, rate=7.0)) == 7  # by the loader
    assert rate({**facts(GIB), "typical_step": None}) is None
    costs = judge(T4, 1, RehearsedApart(0, facts(GIB), None), prices, 8).found
    assert costs.cost_per_million_samples == pytest.approx(1e6 / 16 / 1000)
