"""Runs many cases in one group of real processes, since starting one costs seconds.

A case is a function ``case_…`` of a file beside this one, which every rank calls.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rank_cases import (
    COMPILED,
    DISTRIBUTED,
    FOUR_ON_GPUS,
    FOUR_ON_THE_CPU,
    IN_REPLICAS,
    INPUTS,
    LEARNING,
    SHARDED,
    TIME_LIMIT_SECONDS,
)

import anyrig
from anyrig.errors import LaunchError
from anyrig.processes.group.membership import join_group

HERE = Path(__file__).parent


IN_SHARDS = frozenset((*SHARDED, *IN_REPLICAS))
# What runs in one group: the rig of virtual GPUs if there is one, the ranks, and the cases.
WORLDS: dict[str, tuple[str | None, int, list[str]]] = {
    "2 on the CPU": (None, 2, [*LEARNING, *DISTRIBUTED, *SHARDED, *COMPILED]),
    "4 on the CPU": (None, 4, [*FOUR_ON_THE_CPU, *INPUTS, *IN_REPLICAS]),
    "2 on GPUs": ("2x1GiB", 2, [*LEARNING, *DISTRIBUTED, *SHARDED]),
    # All of LEARNING was run by hand; these are quick, and what four ranks add is in them.
    "4 on GPUs": ("4x1GiB", 4, [*FOUR_ON_GPUS, *IN_REPLICAS]),
}


@cache
def _outcome_of(world: str, in_shards: bool) -> dict[str, dict[int, str]]:
    rig, ranks, cases = WORLDS[world]
    chosen = [name for name in dict.fromkeys(cases) if (name in IN_SHARDS) is in_shards]
    return run_cases("rank_cases", chosen, ranks, rig)


def failures_of(world: str, case: str) -> dict[int, str]:
    """Return the traceback of each rank on which a case failed.

    A world runs on first use, without shards for test_distributed.py and with them for
    test_sharded.py, which may be in two processes.
    """
    return _outcome_of(world, case in IN_SHARDS)[case]


def run_cases(file: str, names: list[str], ranks: int, virtual: str | None = None) -> dict:
    """Return for each case what went wrong on the ranks where something did.

    Args:
        file: the module that has the cases.
        names: of the cases, in order.
        ranks: how many.
        virtual: the rig of virtual GPUs that the ranks have; None for the CPU.
    """

    def work() -> dict[str, dict[int, str]]:  # sent by value: a rank does not know this folder yet
        sys.path[:0] = [str(HERE), str(HERE.parent)]
        import on_ranks

        return on_ranks.run_rank(file, names, virtual)

    try:
        return anyrig.launch(work, rig="cpu", nproc_per_device=ranks)
    except LaunchError as error:  # the group ended: its caller asks for each case, and starts none
        return {name: {rank: str(error) for rank in range(ranks)} for name in names}


def run_rank(file: str, names: list[str], virtual: str | None) -> dict[str, dict[int, str]]:
    if virtual is not None:
        for variable in (
            "CUDA_VISIBLE_DEVICES",
            "ANYRIG_DEVICE",
        ):  # the CPU, of which it was launched
            os.environ.pop(variable, None)
        from anyrig.virtual import install

        install(virtual)
    group = join_group(timeout_seconds=TIME_LIMIT_SECONDS)
    assert group is not None
    module = importlib.import_module(file)
    failures: dict[str, dict[int, str]] = {}
    for name in names:
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        started = time.perf_counter()
        failure = _run_case(getattr(module, name))
        if os.environ.get("ANYRIG_TEST_TIMES") and group.rank == 0:
            print(f"{time.perf_counter() - started:6.2f} s  {name}", flush=True)
        heard: list[Any] = [None] * group.world_size
        dist.all_gather_object(heard, failure)
        failures[name] = {rank: text for rank, text in enumerate(heard) if text}
    dist.destroy_process_group()
    return failures


def _run_case(case: Any) -> str:
    try:
        case()
    except BaseException:
        traceback.print_exc()
        return traceback.format_exc()
    return ""
