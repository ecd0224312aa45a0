"""Verify the training runs in some files in one group of ranks, which is started only once."""

from __future__ import annotations

import importlib
import json
import os
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from anyrig.processes.group.membership import join_group
from anyrig.verification import verify


def run_rank(cases: list[list[str]], folder: str) -> None:
    """Verify on this rank; rank 0 writes the exit codes and texts to a file of `folder`.

    Args:
        cases: for each case, the file, the function in it, and the default type.
        folder: where ``verdicts.json`` is written.
    """
    torch.set_num_threads(1)
    join_group(timeout_seconds=60)
    verdicts = []
    for module, name, dtype in cases:
        file = importlib.import_module(module)
        train = getattr(file, name)
        try:
            verdict = verify(train, steps=file.STEPS, dtype=getattr(torch, dtype))
            verdicts.append((verdict.exit_code, str(verdict)))
        except Exception:
            verdicts.append((-1, traceback.format_exc()))
    if os.environ["RANK"] == "0":
        Path(folder, "verdicts.json").write_text(json.dumps(verdicts))
    dist.destroy_process_group()
