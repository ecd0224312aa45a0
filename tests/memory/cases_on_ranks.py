"""Runs the cases of `test_over_ranks.py` on each of four ranks: starting ranks costs seconds."""

from __future__ import annotations

import gc
import json
import os
import time
import traceback
import warnings
from pathlib import Path

import fit_on_ranks
import survive_on_ranks
import torch
import torch.distributed as dist

RANKS = survive_on_ranks.RANKS
CASES = {**survive_on_ranks.CASES, **fit_on_ranks.CASES}


def run(folder: str) -> None:
    """Run all cases on this rank, and write a line for each: its name, and a traceback or ""."""
    for variable in ("CUDA_VISIBLE_DEVICES", "ANYRIG_DEVICE"):
        os.environ.pop(variable, None)
    from anyrig.processes.group.membership import join_group
    from anyrig.virtual import install

    install(f"{RANKS}x1GiB", clock=False)
    join_group(timeout_seconds=60)
    torch.set_default_dtype(torch.float64)
    warnings.filterwarnings("ignore", "a step of")
    report = Path(folder, str(dist.get_rank()))
    gc.collect()
    gc.freeze()  # leaves few objects to search for modules
    for name, case in CASES.items():
        started = time.perf_counter()
        failure = ""
        try:
            case()
        except Exception:  # the other ranks may now wait for this one, until they time out
            failure = traceback.format_exc()
            traceback.print_exc()
        gc.collect()
        with report.open("a") as lines:
            lines.write(json.dumps([name, failure]) + "\n")
        if os.environ.get("ANYRIG_TEST_TIMES") and dist.get_rank() == 0:
            print(f"{time.perf_counter() - started:6.2f} s  {name}", flush=True)
    dist.destroy_process_group()
