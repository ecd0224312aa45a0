"""The search for plans, with results computed by a formula instead of rehearsals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from made_plans import SAMPLES, Cluster

from anyrig.errors import PlanningError
from anyrig.planning.arrangement import PIPELINE, REPLICAS, SHARDS, VARIABLE, Arrangement
from anyrig.planning.arrangements import arrangements_on
from anyrig.planning.candidate import Verdict
from anyrig.planning.launch_time import LaunchTime
from anyrig.planning.plan_search import MEMORY, PRICE, SPEED, PlanSearch
from anyrig.planning.plan_table import describe_loss, describe_search, describe_unused
from anyrig.planning.planning import Planning
from anyrig.planning.ranking import join_plans
from anyrig.planning.rehearsed_value import Order
from anyrig.planning.stage_time import StageTime
from anyrig.planning.workload import Workload
from anyrig.programs.program import Program
from anyrig.rehearsal.comparison.prices import Prices
from anyrig.rehearsal.comparison.rehearsed_apart import RehearsedApart
from anyrig.virtual.rig import VirtualRig

GIB = 2**30
CLUSTER = Cluster(Path(), "hash")
EIGHT = VirtualRig.parse("8xA100-80GB")


def planned(results: Cluster, rig: str = "8xA100-80GB", **asked: Any) -> PlanSearch:
    parsed = VirtualRig.parse(rig)
    by, tries = asked.pop("by", SPEED), asked.pop("tries", 40)
    search = PlanSearch(parsed, arrangements_on(parsed), by, tries)
    prices = Prices("USD", {"A100-80GB": 1.0, "T4": 0.1})
    planning = Planning(Program("train.py", ()), search, prices)
    planning.run(results, lambda arrangement: pytest.fail("nothing is rehearsed"))
    return search


def best_of_all(results: Cluster, rig: VirtualRig) -> float:
    gpus = len(rig.devices)
    return min(
        results.seconds_of(one, gpus)
        for one in arrangements_on(rig)
        if results.bytes_of(one, gpus) < 0.9 * rig.devices[0].memory_bytes
    )


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"collective_seconds": 0.2},
        {"launch_seconds": 0.01},
        {"collective_seconds": 0.2, "launch_seconds": 1e-5},
        {"state_gib": 100.0},
        {"state_gib": 100.0, "collective_seconds": 0.5},
        {"activations_gib": 700.0},
        {"state_gib": 200.0, "activations_gib": 700.0},
    ],
)
@pytest.mark.parametrize("rig", ["4xA100-80GB", "2x(2xA100-80GB)"])
def test_few_rehearsals_find_a_plan_within_two_percent_of_the_best(
    changed: dict[str, float], rig: str
) -> None:
    results = replace(CLUSTER, **changed)
    best = best_of_all(results, VirtualRig.parse(rig))
    search = planned(results, rig)
    assert len(search.tried) <= 40
    found = search.ranked()[0].seconds
    assert found is not None
    assert found <= 1.02 * best


def test_a_program_that_fits_with_no_plan_ends_soon() -> None:
    said = "runs with none of 10 plans on 8xA100-80GB: OutOfMem"
    with pytest.raises(PlanningError, match=said) as caught:
        planned(replace(CLUSTER, state_gib=1000.0))
    # Of the first plan in their order, whichever rehearsal ended first.
    assert "; ANYRIG_PLAN='Replicas()' anyrig rehearse --assume-values" in str(caught.value)


def test_plans_that_take_more_memory_than_there_is_are_not_rehearsed() -> None:
    search = planned(replace(CLUSTER, state_gib=100.0, collective_seconds=0.001))
    assert search.ranked()[0].arrangement == Arrangement(SHARDS, 8)
    replicas = [one for one in search.tried if one.arrangement.plan == REPLICAS]
    assert [one.verdict for one in replicas] == [Verdict.NO, Verdict.NO]
    tried = {one.arrangement for one in search.tried}
    large = [
        one
        for one in search.arrangements
        if one.replicas == 4 and one.plan == SHARDS and one not in tried
    ]
    workload = search.workload
    assert workload.state_bytes == 100 * GIB
    assert not any(workload.cannot_fit(one, EIGHT) for one in large)  # 50 GiB
    assert workload.cannot_fit(Arrangement(REPLICAS, 8), EIGHT)
    assert "2 ran out of memory" in describe_search(search)[0]


def test_the_number_of_rehearsals_is_limited_and_none_is_made_twice() -> None:
    search = planned(CLUSTER, tries=5)
    assert len(search.tried) == 5
    arrangements = [one.arrangement for one in planned(CLUSTER).tried]
    assert len({*arrangements}) == len(arrangements)


def test_the_first_plans_are_one_of_each_kind() -> None:
    first = [(one.arrangement.plan, one.arrangement.processes) for one in planned(CLUSTER).tried]
    assert first[:4] == [(REPLICAS, 8), (SHARDS, 8), (REPLICAS, 1), (PIPELINE, 1)]


def test_the_smallest_plan_and_the_cheapest() -> None:
    by_memory = planned(replace(CLUSTER, state_gib=20.0), by=MEMORY)
    best = by_memory.ranked()[0]
    assert best.peak_bytes == min(one.peak_bytes for one in by_memory.ranked() if one.peak_bytes)
    assert best.arrangement.value("checkpoint", "never") != "never"
    searches = [planned(CLUSTER, rig, by=PRICE) for rig in ("8xA100-80GB", "8xT4")]
    rows = join_plans(searches, None, None)
    assert str(rows[0].rig) == "8xT4"  # as fast here, and cheaper
    assert str(join_plans([replace(one, by=SPEED) for one in searches], None, None)[0].rig)
    rate = rows[0].candidate.found.samples_per_second
    assert rate is not None
    late = join_plans(searches, 1e6 / rate * 0.99, 1e6)
    assert sorted(map(id, late)) == sorted(map(id, rows))


def test_plans_that_fit_for_certain_come_first_and_those_in_time_before_both() -> None:
    search = planned(CLUSTER)
    best = search.ranked()[0]
    found = best.candidate.found
    assert found.step_seconds is not None
    assert found.samples_per_second is not None
    rate = 2 * found.samples_per_second
    found = replace(found, step_seconds=found.step_seconds / 2, samples_per_second=rate)
    likely = replace(best, candidate=replace(best.candidate, verdict=Verdict.LIKELY, found=found))
    search.note(likely)
    assert join_plans([search], None, None)[-1] is likely
    assert join_plans([search], 1.01 * 1e6 / rate, 1e6)[0] is likely  # all others are late
    assert join_plans([search], 0.99 * 1e6 / rate, 1e6)[-1] is likely  # as is this one


def test_by_memory_the_smallest_plan_comes_first() -> None:
    rows = join_plans([planned(CLUSTER, by=MEMORY)], None, None)
    certain = [one.peak_bytes or 0 for one in rows if one.verdict is Verdict.CERTAIN]
    assert certain == sorted(certain)
    assert certain[0] != certain[-1]


def test_samples_of_pipelines_over_ranks_count_once() -> None:
    search = planned(replace(CLUSTER, collective_seconds=1.0))
    pipelines = [one for one in search.tried if one.arrangement.processes > 1]
    assert {one.samples for one in pipelines} == {SAMPLES}
    assert any(one.arrangement.plan == PIPELINE for one in pipelines)


def test_a_loss_says_how_much_and_where() -> None:
    search = planned(CLUSTER)
    first, *others = search.ranked()
    assert describe_loss(first, first) == ("-", "-")
    share, where = describe_loss(first, others[-1])
    assert share.startswith("+")
    assert where.endswith(" waiting for transfers, collectives or other GPUs")


def test_gpus_that_a_plan_leaves_out_are_named_and_count_as_idle() -> None:
    search = planned(replace(CLUSTER, collective_seconds=1.0, unused=(1, 3)), "4xT4")
    rows = search.ranked()
    assert rows[0].unused == (1, 3)
    assert sum(rows[0].seconds_by_way.values()) == pytest.approx(rows[0].seconds)
    assert rows[0].seconds_by_way["idle"] == pytest.approx((rows[0].seconds or 0.0) / 2)
    assert describe_unused(rows)[0] == (
        "1 leaves out cuda:1 (T4), cuda:3 (T4), 2 of 4 GPUs; anyrig.explain(model) says why"
    )
    others = [one for one in rows if one.arrangement.processes > 1]
    assert others
    assert describe_unused(others) == []


def test_plans_that_are_being_rehearsed_count_as_asked_for() -> None:
    search = PlanSearch(EIGHT, arrangements_on(EIGHT), SPEED, 40)
    assert search.progress == "0 of at most 40"
    assert search.next() is not None
    assert search.next() is not None
    assert (search.progress, search.tried) == ("2 of at most 40", [])


def test_a_program_that_follows_no_plan_is_refused() -> None:
    with pytest.raises(
        PlanningError,
        match=r"same time and memory with Replicas\(\) and Shards\(\), so that it does",
    ):
        planned(replace(CLUSTER, obeys=False), tries=2)


@dataclass(frozen=True)
class Refusing(Cluster):
    """A cluster on which a program refuses the plans that demand something."""

    refused: str = ""

    def find(self, order: Order) -> RehearsedApart | None:
        text = order.environment[VARIABLE]
        one = next(each for each in arrangements_on(EIGHT) if str(each) == text)
        if one.plan == PIPELINE and self.refused in {*one.demands, ""}:
            error = {"kind": "SpreadError", "text": "impossible", "line": "train.py:3"}
            return RehearsedApart(1, {"error": error}, None)
        return super().find(order)


@pytest.mark.parametrize(
    ("refused", "failed", "ruled_out"),
    [
        ("", 2, 520),  # a model that cannot be divided
        ("backward passes during the forward call", 1, 434),  # no loss= in the script
        ("a batch in parts", 3, 483),  # batch normalization
    ],
)
def test_what_made_one_plan_fail_is_not_tried_again(
    refused: str, failed: int, ruled_out: int
) -> None:
    search = planned(Refusing(Path(), "hash", collective_seconds=0.5, refused=refused))
    assert sum(one.verdict is Verdict.FAILED for one in search.tried) == failed
    assert search.ruled_out == ruled_out
    assert f"{failed} failed, and so would {ruled_out} others:" in describe_search(search)
    ran = any(one.arrangement.plan == PIPELINE for one in search.ranked())
    assert ran == bool(refused)


@dataclass(frozen=True)
class SameMemory(Cluster):
    """A cluster on which all plans take the same memory; and time, if they are the named ones."""

    same_seconds: tuple[Arrangement, ...] = ()

    def bytes_of(self, one: Arrangement, gpus: int) -> float:
        return 4.0 * GIB

    def seconds_of(self, one: Arrangement, gpus: int) -> float:
        if one in self.same_seconds:
            return 0.1
        return super().seconds_of(one, gpus) + (0.001 if one.plan == SHARDS else 0.0)


@pytest.mark.parametrize(
    "same_seconds",
    [
        (),  # kinds differ in time
        (Arrangement(REPLICAS, 1), Arrangement(SHARDS, 8)),  # as many GPUs, other processes
    ],
)
def test_plans_that_differ_in_time_or_processes_are_followed(
    same_seconds: tuple[Arrangement, ...],
) -> None:
    results = SameMemory(Path(), "hash", same_seconds=same_seconds)
    assert len(planned(results, tries=8).tried) >= 4


def test_a_program_with_a_precision_of_its_own_is_not_tried_in_another() -> None:
    own = planned(CLUSTER)
    plans = arrangements_on(EIGHT, precision="bfloat16")
    search = PlanSearch(EIGHT, plans, SPEED, 40)
    planning = Planning(Program("train.py", ()), search, None, own_precision=own)
    order = planning.order(search.arrangements[0])
    assert order.environment == {VARIABLE: "Replicas()", "ANYRIG_PRECISION": "bfloat16"}
    with pytest.raises(PlanningError, match="same time and memory with precision='bfloat16' as w"):
        planning.run(CLUSTER, lambda arrangement: pytest.fail("nothing is rehearsed"))
    assert describe_search(search)[0].startswith("8xA100-80GB in bfloat16: rehearsed 1 of 530")


def test_bounds_follow_the_schedules() -> None:
    workload = Workload(1.0, 80.0 * GIB, 8.0 * GIB, 16)

    def seconds(schedule: str, micro_batches: int, **more: Any) -> float | None:
        values = {"micro_batches": micro_batches, "schedule": schedule, **more}
        return workload.least_seconds(Arrangement(PIPELINE, 1, tuple(values.items())), 4)

    assert seconds("1f1b", 4) == pytest.approx(7 / 4)
    assert seconds("zero-bubble", 4) == pytest.approx(15 / 12)
    assert seconds("zero-bubble-v", 8) == 1.0
    assert seconds("1f1b", 4, checkpoint="always") == pytest.approx(7 / 3)
    assert seconds("1f1b", 4, checkpoint="except_last") == pytest.approx(7 / 4 * 5 / 4)
    assert seconds("1f1b", 4, replicas=2) == pytest.approx(5 / 4)
    assert workload.least_bytes(Arrangement(REPLICAS, 4), 4) == 82 * GIB
    assert workload.least_bytes(Arrangement(SHARDS, 4, (("replicas", 2),)), 4) == 42 * GIB
    fine = Arrangement(PIPELINE, 1, (("micro_batches", 32),))
    assert workload.is_too_fine(fine)
    assert not workload.is_too_fine(Arrangement(PIPELINE, 1, (("micro_batches", 16),)))


def test_the_slowest_stage_bounds_similar_pipelines() -> None:
    facts = {
        "typical_step": {"seconds": 2.0},
        "devices": [{"busy_share": 0.25}, {"busy_share": 0.75}],
    }

    def pipeline(schedule: str, micro_batches: int, **more: Any) -> Arrangement:
        values = {"micro_batches": micro_batches, "schedule": schedule, **more}
        return Arrangement(PIPELINE, 1, tuple(values.items()))

    stages = StageTime.of(pipeline("1f1b", 8), facts)
    workload = Workload(0.5).least(Workload(stages=stages))
    assert workload.slowest_stage_seconds(pipeline("1f1b", 8)) == 1.5
    assert workload.slowest_stage_seconds(pipeline("zero-bubble", 64, checkpoint="always")) == 1.5
    for other in (
        pipeline("1f1b", 7),
        pipeline("interleaved", 8),
        pipeline("1f1b", 8, replicas=2),
    ):
        assert workload.slowest_stage_seconds(other) == 0
    (split,) = StageTime.of(pipeline("zero-bubble", 8), facts)
    assert not split.bounds(pipeline("1f1b", 8))
    search = PlanSearch(VirtualRig.parse("2xT4"), [], SPEED, 4, workload=workload)
    assert search.bound(pipeline("1f1b", 8)) == 1.5
    assert StageTime.of(pipeline("1f1b", 8, checkpoint="always"), facts) == ()
    assert StageTime.of(Arrangement(SHARDS, 2), facts) == ()


def test_the_launches_of_a_pipeline_bound_similar_ones() -> None:
    facts = {
        "typical_step": {"seconds": 2.0},
        "devices": [{"idle_share": 0.75}, {"idle_share": 0.5}],
    }

    def pipeline(micro_batches: int, processes: int = 1, **more: Any) -> Arrangement:
        values = {"micro_batches": micro_batches, **more}
        return Arrangement(PIPELINE, processes, tuple(values.items()))

    workload = Workload(0.5).least(Workload(launches=LaunchTime.of(pipeline(8), facts)))
    assert workload.launch_seconds(pipeline(8, schedule="zero-bubble"), 4) == 1.0
    assert workload.launch_seconds(pipeline(4, checkpoint="always"), 4) == 0.5
    assert workload.launch_seconds(pipeline(64), 4) == 1.0  # if the optimizer takes all the time
    assert workload.launch_seconds(pipeline(8, 4, replicas=2), 4) == 0.5  # by two ranks
    assert workload.launch_seconds(Arrangement(SHARDS, 4), 4) == 0
    search = PlanSearch(VirtualRig.parse("4xT4"), [], SPEED, 4, workload=workload)
    assert search.bound(pipeline(64)) == 1.0
    (split,) = LaunchTime.of(pipeline(8, schedule="zero-bubble"), facts)
    assert split.seconds_for(pipeline(8), 4) == 0
    assert LaunchTime.of(pipeline(8, checkpoint="always"), facts) == ()
    assert LaunchTime.of(pipeline(8, 4, replicas=2), facts) == ()


def test_unequal_gpus_and_one_gpu_have_the_plans_that_they_can_follow() -> None:
    unequal = arrangements_on(VirtualRig.parse("RTX-4090+2xRTX-3090"))
    assert all(one.replicas == 1 for one in unequal)
    assert {one.family for one in unequal} == {
        *((REPLICAS, False), (REPLICAS, True), (SHARDS, True), (PIPELINE, False)),
    }
    assert arrangements_on(VirtualRig.parse("T4")) == [Arrangement(REPLICAS, 1)]
    nodes = arrangements_on(VirtualRig.parse("2x(2xT4)"))
    assert all(one.processes == 4 for one in nodes)
