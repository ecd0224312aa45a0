"""What ranks do in `test_group_ranks.py`: barriers, and blocks of the first rank only."""

from __future__ import annotations

import io
import time
from contextlib import redirect_stdout
from datetime import timedelta

import pytest
from group_of_ranks import at_once, keys, note, noted, rank, ranks, store

import anyrig
from anyrig.errors import OtherRankError, RankWaitError


def case_a_barrier_waits_for_the_last() -> None:
    at_once()
    if rank() == 1:
        time.sleep(0.1)
        note("the last one came")
    anyrig.barrier()
    assert noted("the last one came")


def case_a_barrier_names_whom_it_waited_for() -> None:
    at_once()
    anyrig.barrier()
    if rank() == 1:
        at_once()
        anyrig.barrier()  # late, but returns: all ranks have come
    else:
        with pytest.raises(
            RankWaitError,
            match=rf"rank {rank()} waited at a barrier \(waiting_cases.py:\d+ in case_a_barrier_"
            r"names_whom_it_waited_for\), and rank 1 did not take part within 0.4 s: rank 1 "
            r"last reached a barrier at waiting_cases.py:\d+ in case_a_barrier_names_whom_it_"
            r"waited_for, \d+ s ago\. ",
        ):
            anyrig.barrier(timeout_seconds=0.4)
        at_once()
    anyrig.barrier()  # the ranks count the same barriers again


def case_many_barriers_leave_no_keys() -> None:
    for _ in range(3):
        anyrig.barrier()
    at_once()
    before = keys()
    at_once()
    for _ in range(50):
        anyrig.barrier()
    at_once()
    assert keys() <= before + 4  # a rank may not have removed its key of the last one


def case_the_first_rank_works_while_the_others_wait() -> None:
    at_once()
    with anyrig.only_first_rank() as first:
        assert first is (rank() == 0)
        if first:
            time.sleep(0.1)
            note("the first one worked")
    assert noted("the first one worked")


def case_blocks_of_the_first_rank_leave_no_keys() -> None:
    at_once()
    before = keys()
    at_once()
    for _ in range(20):
        with anyrig.only_first_rank():
            pass
    at_once()
    assert keys() == before


def case_an_error_of_the_first_rank_reaches_the_others() -> None:
    def fail() -> None:
        with anyrig.only_first_rank(timeout_seconds=10) as first:
            if first:
                raise KeyError("no such file")

    if rank() == 0:
        with pytest.raises(KeyError):
            fail()
    else:
        with pytest.raises(
            OtherRankError,
            match=r"(?s)rank 0 failed in only_first_rank\(\) \(waiting_cases.py:\d+ in fail\)"
            r".*in fail\n.*KeyError: 'no such file'",
        ):
            fail()


def case_an_error_of_another_rank_stays_its_own() -> None:
    try:
        with anyrig.only_first_rank(timeout_seconds=20) as first:
            if first:
                store().wait(["test rank 1 left"], timedelta(seconds=10))
            if rank() == 1:
                raise ValueError("mine")
    except ValueError:
        assert rank() == 1
        note("rank 1 left")  # this rank no longer waits


def case_the_first_rank_is_waited_for_by_name() -> None:
    if rank() == 0:
        at_once()
        with anyrig.only_first_rank():
            pass
    else:
        with (
            pytest.raises(
                RankWaitError,
                match=r"at the end of only_first_rank.* rank 0 did not take part within 0.3 s",
            ),
            anyrig.only_first_rank(timeout_seconds=0.3),
        ):
            pass
        at_once()


def case_a_block_within_a_block_of_the_first_rank_only() -> None:
    steps = []

    @anyrig.only_first_rank(per_node=True)
    def download() -> int:
        time.sleep(0.1)
        steps.append("download")
        note(f"download {len(steps)}")
        return 3

    with anyrig.only_first_rank() as first:
        if first:
            assert download() == 3  # the other ranks do not reach this line
    assert download() == (3 if rank() == 0 else None)
    assert noted("download 2")  # it waits for this use, not for the earlier one
    assert len(steps) == (2 if rank() == 0 else 0)


def case_the_first_rank_of_each_machine_works() -> None:
    """Rank 0 has a node of its own, and the others share one, by the launcher's variables."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LOCAL_RANK", str(max(0, rank() - 1)))
        environment.setenv("LOCAL_WORLD_SIZE", "1" if rank() == 0 else str(ranks() - 1))
        with anyrig.only_first_rank(per_node=True, timeout_seconds=20) as first:
            pass

        @anyrig.only_first_rank(per_node=True, timeout_seconds=20)
        def works() -> bool:
            return True

        worked = works() is True
    expected = [other < 2 for other in range(ranks())]
    assert anyrig.gather_over_ranks(first) == anyrig.gather_over_ranks(worked) == expected


def case_printing_once() -> None:
    with redirect_stdout(io.StringIO()) as out:
        anyrig.print_once("a", 1, sep="-", end=".")
    assert out.getvalue() == ("a-1." if rank() == 0 else "")
