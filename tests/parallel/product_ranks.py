"""Runs cases of the product in groups of two ranks, and reports each rank's result.

::

    group 1   case case case case ✗        ranks differ, or one has failed: the group ends
    group 2                         case case …
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from product_cases import EQUAL, NO_MEANING, Case, run_case

import anyrig
from anyrig.errors import AnyrigError
from anyrig.processes.group.membership import join_group
from forked_ranks import RanksError, run_forked

RANKS = 2
TIME_LIMIT_SECONDS = 8.0
FAILED = "failed: "


def outcomes(cases: list[Case]) -> dict[Case, list[str]]:
    """Return each rank's result of each case: that of `run_case`, or `FAILED` and an error."""
    found: dict[Case, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        while len(found) < len(cases):
            left = cases[len(found) :]
            report = Path(folder) / str(len(found))
            try:
                run_forked(__file__, "run_rank", (left, str(report)), RANKS)
            except RanksError as error:
                ended = str(error)
            else:
                ended = "the group ended"
            lines = report.read_text().splitlines() if report.exists() else []
            found.update(zip(left, map(json.loads, lines), strict=False))
            if not lines:
                found[left[0]] = [f"{FAILED}{ended[-2000:]}"] * RANKS
    return found


def run_rank(cases: list[Any], report: str) -> None:
    """Run cases until the ranks differ or one fails; rank 0 adds a line to `report` for each."""
    group = join_group(timeout_seconds=TIME_LIMIT_SECONDS)
    assert group is not None
    # Its messages do not mix with those of a case that has failed.
    apart = dist.new_group(backend="gloo", timeout=timedelta(seconds=4 * TIME_LIMIT_SECONDS))
    for case in cases:
        outcome = _try(Case(*case))
        if outcome not in (EQUAL, NO_MEANING):
            # A rank that waits for this one in the case gets an error at once.
            with contextlib.suppress(AnyrigError):
                anyrig.barrier()
        heard: list[Any] = [None] * group.world_size
        dist.all_gather_object(heard, outcome, group=apart)
        if group.rank == 0:
            with Path(report).open("a") as lines:
                lines.write(json.dumps(heard) + "\n")
        if any(each not in (EQUAL, NO_MEANING) for each in heard) and len({*heard}) > 1:
            break  # the ranks may have announced different numbers of calls
        if any(each.startswith(FAILED) for each in heard):
            break
    dist.destroy_process_group()


def _try(case: Case) -> str:
    try:
        return run_case(case)
    except Exception as error:
        return f"{FAILED}{type(error).__name__}: {error}"
