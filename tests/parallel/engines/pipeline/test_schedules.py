"""Schedules of every number of stages and micro-batches, compared with closed forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from anyrig.errors import SpreadError
from anyrig.parallel.engines.pipeline.schedules.check import check
from anyrig.parallel.engines.pipeline.schedules.interleaved import split_rounds
from anyrig.parallel.engines.pipeline.schedules.named import SCHEDULE_NAMES, make_schedule
from anyrig.parallel.engines.pipeline.schedules.schedule import Schedule, Task, Work
from anyrig.parallel.engines.pipeline.schedules.timeline import Timeline, simulate

DEVICES = range(1, 9)
MICRO_BATCHES = range(1, 33)


def timelines(
    name: str, stages_per_device: int | None = None
) -> Iterator[tuple[int, int, Timeline]]:
    """Simulate every size. `simulate` checks that each task occurs once, and that it ends."""
    for n in DEVICES:
        for m in MICRO_BATCHES:
            yield n, m, simulate(make_schedule(name, n, m, stages_per_device))


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_gpipe_and_1f1b_take_as_long_as_the_pipeline_is_deep(name: str) -> None:
    for n, m, timeline in timelines(name):
        assert timeline.total_seconds == 3 * (m + n - 1)
        assert timeline.most_in_flight == tuple(
            m if name == "gpipe" else min(n - device, m) for device in range(n)
        )


def test_forward_holds_one_micro_batch() -> None:
    for n, m, timeline in timelines("forward"):
        assert timeline.total_seconds == m + n - 1
        assert set(timeline.most_in_flight) == {1}


@pytest.mark.parametrize("v", [2, 3, 4])
def test_interleaved_divides_the_idle_time_by_the_stages_of_a_device(v: int) -> None:
    for n, m, timeline in timelines("interleaved", v):
        assert timeline.total_seconds == 3 * (v * max(m, n) + min(m, n) - 1)
        longest = max(len(each) for each in split_rounds(n, m))
        assert longest < 2 * n
        assert timeline.most_in_flight == tuple(
            min(v * m, (v - 1) * longest + 2 * (n - device - 1) + 1) for device in range(n)
        )


def test_zero_bubble_takes_less_time_and_no_more_memory_than_1f1b() -> None:
    for n, m, timeline in timelines("zero-bubble"):
        assert timeline.total_seconds == max(3 * m + n - 1, 2 * m + 2 * n - 1)
        assert timeline.total_seconds <= 3 * (m + n - 1)
        assert max(timeline.most_in_flight) == min(n, m)


def test_zero_bubble_h2_never_waits_after_its_first_task() -> None:
    for n, m, timeline in timelines("zero-bubble-h2"):
        assert max(timeline.most_in_flight) == min(2 * n - 1, m)
        if m >= 2 * n - 1:
            assert timeline.total_seconds == 3 * m + n - 1
            for tasks in timeline.schedule.tasks:
                start, end = timeline.start_seconds[tasks[0]], timeline.end_seconds[tasks[-1]]
                assert end - start == 3 * m


@pytest.mark.parametrize("transfer_seconds", [0.25, 1.0])
def test_transfers_delay_zero_bubble_h2_only_while_it_fills(transfer_seconds: float) -> None:
    for n in range(2, 9):
        for m in (2 * n - 1, 2 * n, 32):
            usual, more = (
                simulate(make_schedule(name, n, m), transfer_seconds=transfer_seconds)
                for name in ("zero-bubble", "zero-bubble-h2")
            )
            assert more.total_seconds == 3 * m + (n - 1) * (1 + transfer_seconds)
            assert usual.total_seconds > more.total_seconds


def test_zero_bubble_few_never_waits_after_its_first_task() -> None:
    for n, m, timeline in timelines("zero-bubble-few"):
        if m < 4 * n:
            assert timeline.schedule.tasks == make_schedule("zero-bubble-h2", n, m).tasks
            continue
        assert max(timeline.most_in_flight) == max(1, 4 * n - 3)
        assert timeline.total_seconds == 3 * m + n - 1
        for tasks in timeline.schedule.tasks:
            start, end = timeline.start_seconds[tasks[0]], timeline.end_seconds[tasks[-1]]
            assert end - start == 3 * m
        delayed = simulate(timeline.schedule, transfer_seconds=0.5)
        assert delayed.total_seconds == 3 * m + (n - 1) * 2.5


def test_zero_bubble_few_splits_four_backward_passes_more_on_each_device() -> None:
    split = make_schedule("zero-bubble-few", 4, 16).split
    assert [sum(stage == each for stage, _ in split) for each in range(4)] == [0, 4, 8, 12]


def test_zero_bubble_v_waits_for_the_first_micro_batch_only() -> None:
    for n, m, timeline in timelines("zero-bubble-v"):
        assert timeline.total_seconds == max(6 * m + n - 1, 4 * m + 4 * n - 2)
        assert max(timeline.most_in_flight) == min(2 * n, 2 * m)  # each half as large
        if m >= 2 * n - 1:
            for tasks in timeline.schedule.tasks:
                start, end = timeline.start_seconds[tasks[0]], timeline.end_seconds[tasks[-1]]
                assert end - start == 6 * m


def test_the_bars_of_memory_and_speed() -> None:
    # 1F1B's first stage holds GPipe's micro-batches times stages / micro-batches.
    n, m = 4, 8
    gpipe, usual, zero = (
        simulate(make_schedule(name, n, m)) for name in ("gpipe", "1f1b", "zero-bubble")
    )
    assert usual.most_in_flight[0] == gpipe.most_in_flight[0] * n / m
    alone = 3 * m * n
    assert alone / usual.total_seconds == pytest.approx(4 * 8 / 11)
    assert alone / zero.total_seconds > 3.5
    assert max(zero.most_in_flight) == max(usual.most_in_flight)


@pytest.mark.parametrize(
    ("name", "speedup"),
    [
        ("1f1b", 2.91),
        ("zero-bubble", 3.56),
        ("zero-bubble-h2", 3.95),
        ("zero-bubble-few", 3.95),
        ("zero-bubble-v", 3.98),
    ],
)
def test_speed_is_sustained_over_ten_steps(name: str, speedup: float) -> None:
    # Each device updates its own parameters and continues: a step begins while the last one ends.
    for m in (8, 12):
        schedule = make_schedule(name, 4, m)
        ten = replace(
            schedule,
            micro_batches=10 * m,
            tasks=tuple(
                tuple(
                    replace(task, micro_batch=task.micro_batch + m * step)
                    for step in range(10)
                    for task in tasks
                )
                for tasks in schedule.tasks
            ),
        )
        timeline = simulate(ten)
        times_one_device = 10 * 3 * m * schedule.stages / timeline.total_seconds
        assert timeline.most_in_flight == simulate(schedule).most_in_flight
        if m == 8:
            assert times_one_device == pytest.approx(
                speedup, abs=0.005
            )  # docs/pipeline_schedules.md
        assert times_one_device >= speedup - 0.005


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
def test_a_device_s_stages_and_whole_backward_of_the_first_stage(name: str) -> None:
    schedule = make_schedule(name, 3, 4)
    stages = {
        device: [s for s, d in enumerate(schedule.device_of_stage) if d == device]
        for device in range(3)
    }
    assert stages == {
        "interleaved": {0: [0, 3], 1: [1, 4], 2: [2, 5]},
        "zero-bubble-v": {0: [0, 5], 1: [1, 4], 2: [2, 3]},
    }.get(name, {0: [0], 1: [1], 2: [2]})
    split = set(range(1, schedule.stages)) if name.startswith("zero-bubble") else set()
    assert {stage for stage, _ in schedule.split} == split


def test_one_device_never_waits() -> None:
    for name in SCHEDULE_NAMES:
        assert simulate(make_schedule(name, 1, 5)).idle_shares == (0.0,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dualpipe", 2, 2), r"'dualpipe' is not a schedule.*'1f1b', 'forward', 'gpipe', 'inter"),
        (("1f1b", 0, 2), "with 0 devices and 2 micro-batches; pass at least one of each"),
        (("1f1b", 2, 0), "with 2 devices and 0 micro-batches"),
        (("gpipe", 2, 2, 2), "has 1 stages per device, not 2; .* 'interleaved' 2 or more"),
        (("interleaved", 2, 2, 1), "has 2 or more stages per device, not 1"),
        (("zero-bubble-v", 2, 2, 3), "has 2 stages per device, not 3"),
    ],
)
def test_what_is_refused(arguments: tuple[str, int, int], message: str) -> None:
    with pytest.raises(SpreadError, match=message):
        make_schedule(*arguments)


def two_devices(*tasks: str) -> Schedule:
    """Return a schedule from texts such as "F0 B0": a device has the stage of its index."""
    return Schedule(
        "mine",
        1,
        (0, 1),
        tuple(
            tuple(Task(Work(word[0]), int(word[1]), int(word[2])) for word in device.split())
            for device in tasks
        ),
    )


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            two_devices("F00 B00", "F10"),
            r"'mine' of 2 stages .* does not have B\(stage 1, micro-batch 0",
        ),
        (two_devices("F00 B00 F00", "F10 B10"), r"has more than once F\(stage 0, micro-batch 0\)"),
        (two_devices("F00 B00 F01", "F10 B10"), r"should not have F\(stage 0, micro-batch 1\)"),
        (two_devices("F00 B00", "F10 I10"), r"does not have W\(stage 1, micro-batch 0\)"),
        (two_devices("F00 B00 F10", "B10"), r"wrong device F\(stage 1, micro-batch 0\)"),
        (two_devices("F00", "F10 B10"), r"does not have B\(stage 0, micro-batch 0\)"),
    ],
)
def test_a_schedule_that_is_not_one(schedule: Schedule, message: str) -> None:
    with pytest.raises(SpreadError, match=message):
        check(schedule)
