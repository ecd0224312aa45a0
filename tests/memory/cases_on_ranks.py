"""Runs the cases of `test_over_ranks.py` on each of four ranks: starting ranks costs seconds."""

from __future__ import annotations

import gc
import os
import time
import traceback
import warnings
from typing import Any

import fit_on_ranks
import survive_on_ranks
import torch
import torch.distributed as dist

RANKS = survive_on_ranks.RANKS
CASES = {**survive_on_ranks.CASES, **fit_on_ranks.CASES}


def run() -> dict[str, str]:
    """Run all cases on this rank; return the tracebacks of those that failed on any rank."""
    for variable in ("CUDA_VISIBLE_DEVICES", "ANYRIG_DEVICE"):
        os.environ.pop(variable, None)
    from anyrig.processes.group.membership import join_group
    from anyrig.virtual import install

    install(f"{RANKS}x1GiB", clock=False)
    join_group(timeout_seconds=60)
    torch.set_default_dtype(torch.float64)
    warnings.filterwarnings("ignore", "a step of")
    failures: dict[str, str] = {}
    gc.collect()
    gc.freeze()  # leaves few objects to search for modules
    for name, case in CASES.items():
        started = time.perf_counter()
        try:
            case()
        except Exception:  # the other ranks may now wait for this one, until they time out
            failures[name] = traceback.format_exc()
            traceback.print_exc()
        gc.collect()
        if os.environ.get("ANYRIG_TEST_TIMES") and dist.get_rank() == 0:
            print(f"{time.perf_counter() - started:6.2f} s  {name}", flush=True)
    heard: list[Any] = [None] * RANKS
    dist.all_gather_object(heard, failures)
    dist.destroy_process_group()
    return {name: text for each in heard for name, text in each.items()}
