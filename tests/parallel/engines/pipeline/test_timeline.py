"""Timelines: when tasks run, what waits for what, and an order for one thread."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from anyrig.errors import SpreadError
from anyrig.parallel.engines.pipeline.schedules.named import SCHEDULE_NAMES, make_schedule
from anyrig.parallel.engines.pipeline.schedules.schedule import Task, Work
from anyrig.parallel.engines.pipeline.schedules.timeline import issue_order, simulate

F, B, I, W = Work.FORWARD, Work.BACKWARD, Work.BACKWARD_INPUT, Work.BACKWARD_WEIGHT  # noqa: E741


def test_times_follow_durations_and_transfers() -> None:
    schedule = make_schedule("1f1b", 2, 2)
    seconds = {F: 0.5, B: 1.5}
    timeline = simulate(schedule, lambda task: seconds[task.work] * (1 + task.stage), 0.25)
    start = timeline.start_seconds
    assert [start[task] for task in schedule.tasks[0]] == [0.0, 0.5, 5.0, 9.0]
    assert [start[task] for task in schedule.tasks[1]] == [0.75, 1.75, 4.75, 5.75]
    assert timeline.total_seconds == 10.5
    assert timeline.idle_shares == pytest.approx((1 - 4.0 / 10.5, 1 - 8.0 / 10.5))
    assert timeline.most_in_flight == (2, 1)


def test_a_result_for_the_same_device_needs_no_transfer() -> None:
    schedule = make_schedule("zero-bubble-v", 2, 1)
    start = simulate(schedule, transfer_seconds=10.0).start_seconds
    assert [start[Task(F, stage, 0)] for stage in range(4)] == [0.0, 11.0, 12.0, 23.0]


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
def test_tasks_start_after_what_they_need_and_devices_do_one_at_a_time(name: str) -> None:
    schedule = make_schedule(name, 4, 7)
    timeline = simulate(schedule, lambda task: 1.0 + task.stage % 3 / 7, 0.125)
    for tasks in schedule.tasks:
        for before, task in pairwise(tasks):
            assert timeline.end_seconds[before] <= timeline.start_seconds[task]
        for task in tasks:
            for needed in schedule.dependencies(task):
                assert timeline.end_seconds[needed] <= timeline.start_seconds[task]


def test_the_gradient_of_a_split_stage_is_passed_on_before_its_weights() -> None:
    schedule = make_schedule("zero-bubble", 3, 2)
    assert schedule.dependencies(Task(F, 0, 1)) == ()
    assert schedule.dependencies(Task(F, 2, 1)) == (Task(F, 1, 1),)
    assert schedule.dependencies(Task(I, 2, 1)) == (Task(F, 2, 1),)
    assert schedule.dependencies(Task(I, 1, 1)) == (Task(F, 1, 1), Task(I, 2, 1))
    assert schedule.dependencies(Task(B, 0, 1)) == (Task(F, 0, 1), Task(I, 1, 1))
    assert schedule.dependencies(Task(W, 2, 1)) == (Task(I, 2, 1),)
    whole = make_schedule("1f1b", 3, 2)
    assert whole.dependencies(Task(B, 0, 1)) == (Task(F, 0, 1), Task(B, 1, 1))


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
def test_one_thread_can_issue_all_tasks(name: str) -> None:
    for n in range(1, 9):
        for m in (1, 2, 3, n, 2 * n - 1, 13):
            schedule = make_schedule(name, n, m)
            order = issue_order(schedule)
            position = {task: index for index, task in enumerate(order)}
            assert len(position) == len(order) == sum(map(len, schedule.tasks))
            for tasks in schedule.tasks:
                indices = [position[task] for task in tasks]
                assert indices == sorted(indices)
                for task in tasks:
                    assert all(
                        position[needed] < position[task] for needed in schedule.dependencies(task)
                    )


def test_the_order_follows_the_clock() -> None:
    order = issue_order(make_schedule("1f1b", 2, 2))
    text = " ".join(f"{task.work.value}{task.stage}{task.micro_batch}" for task in order)
    assert text == "F00 F01 F10 B10 B00 F11 B11 B01"


def test_tasks_that_wait_for_each_other_are_named() -> None:
    schedule = make_schedule("1f1b", 2, 2)
    last = schedule.tasks[1]
    turned = replace(schedule, tasks=(schedule.tasks[0], (last[1], last[0], *last[2:])))
    with pytest.raises(SpreadError) as raised:
        simulate(turned)
    assert str(raised.value) == (
        "schedule '1f1b' of 2 stages and 2 micro-batches never ends: device 0 waits at "
        "B(stage 0, micro-batch 0) for B(stage 1, micro-batch 0); device 1 waits at "
        "B(stage 1, micro-batch 0) for F(stage 1, micro-batch 0). Correct the order of tasks, or "
        "use a schedule of anyrig: schedule='1f1b'"
    )


def test_missing_tasks_are_named() -> None:
    schedule = make_schedule("zero-bubble", 2, 8)
    short = replace(schedule, tasks=(schedule.tasks[0], schedule.tasks[1][:-9]))
    message = r"does not have .* and 1 more"
    with pytest.raises(SpreadError, match=message):
        simulate(short)
