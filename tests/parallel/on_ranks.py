"""Runs many cases in one group of real processes, since starting one costs seconds.

A case is a function ``case_…`` of a test file or of a file next to one, which every rank calls.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import threading
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from anyrig.processes.group.membership import join_group
from forked_ranks import RanksError, run_forked

# The limit of every wait in these groups.
TIME_LIMIT_SECONDS = 30.0


def cases_of(*modules: ModuleType) -> list[str]:
    """Return the names of the cases of modules, in order, each as ``"module.case"``."""
    return [
        f"{module.__name__}.{name}"
        for module in modules
        for name in vars(module)
        if name.startswith("case_")
    ]


class World:
    """A group of ranks that runs cases, and reports each case as soon as all ranks have run it.

    `world[case]` waits for the case. It is the traceback of each rank on which the case failed.
    """

    def __init__(self, names: list[str], ranks: int, virtual: str | None) -> None:
        self._names, self._ranks = names, ranks
        self._error: RanksError | None = None
        self._folder = tempfile.TemporaryDirectory()
        self._report = Path(self._folder.name) / "report"
        self._launch = threading.Thread(target=self._run, args=(names, ranks, virtual), daemon=True)
        self._launch.start()

    def _run(self, names: list[str], ranks: int, virtual: str | None) -> None:
        try:
            run_forked(__file__, "run_rank", (names, virtual, str(self._report)), ranks)
        except RanksError as error:  # the group has ended before the remaining cases
            self._error = error

    def __getitem__(self, case: str) -> dict[int, str]:
        while True:
            has_ended = not self._launch.is_alive()  # before the report is read
            text = self._report.read_text() if self._report.exists() else ""
            lines = text.splitlines()[: text.count("\n")]  # without a line that is being written
            found = dict(zip(self._names, map(json.loads, lines), strict=False))
            if case in found or has_ended:
                break
            time.sleep(0.02)
        if len(found) == len(self._names):
            self._launch.join()  # leave no ranks to later tests
        assert self._error is None or len(found) < len(self._names), self._error
        lost = dict.fromkeys(range(self._ranks), f"the group ended: {self._error}")
        return {int(rank): failure for rank, failure in found.get(case, lost).items()}


def run_cases(names: list[str], ranks: int, virtual: str | None = None) -> World:
    """Start a group of ranks that runs cases.

    Args:
        names: the names of the cases, in order, each as ``"module.case"``.
        ranks: the number of ranks.
        virtual: the rig of virtual GPUs that the ranks have; None for the CPU.
    """
    return World(names, ranks, virtual)


def run_rank(names: list[str], virtual: str | None, report: str) -> None:
    """Run the cases on this rank; rank 0 adds a line to the file `report` for each."""
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
    cases = {}
    for name in names:
        file, _, case = name.rpartition(".")
        cases[name] = getattr(importlib.import_module(file), case)
    for name, case in cases.items():
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        started = time.perf_counter()
        failure = _run_case(case)
        if os.environ.get("ANYRIG_TEST_TIMES") and group.rank == 0:
            print(f"{time.perf_counter() - started:6.2f} s  {name}", flush=True)
        heard: list[Any] = [None] * group.world_size
        dist.all_gather_object(heard, failure)
        if group.rank == 0:
            failures = {rank: text for rank, text in enumerate(heard) if text}
            with Path(report).open("a") as lines:
                lines.write(json.dumps(failures) + "\n")
    dist.destroy_process_group()


def _run_case(case: Any) -> str:
    try:
        case()
    except BaseException:
        traceback.print_exc()
        return traceback.format_exc()
    return ""
