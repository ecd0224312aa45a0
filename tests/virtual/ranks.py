"""Run many test cases in the ranks of one world, since starting a world takes seconds.

A case is a function ``case_...`` of a file in ``on_ranks``. The cases of a file run in order, each
on every rank, with the world as argument. A rank reports the traceback of a case that fails.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

ON_RANKS = Path(__file__).parent / "on_ranks"


def names_of_cases(file: str) -> list[str]:
    """Return the names of the cases of `file` without importing it, which needs a rig."""
    lines = (ON_RANKS / f"{file}.py").read_text().splitlines()
    return [line[4:].partition("(")[0] for line in lines if line.startswith("def case_")]


@dataclass
class Outcome:
    """The failures of a world's cases, and how its ranks ended."""

    failures: dict[str, list[str]] = field(default_factory=dict)
    exit_codes: list[int] = field(default_factory=list)
    output: str = ""

    def check(self, case: str) -> None:
        assert case in self.failures, f"did not run {case}:\n{self.output}"
        assert not self.failures[case], "\n".join(self.failures[case])


def run_cases(
    files: Sequence[str],
    size: int,
    folder: Path,
    *,
    seconds: float = 150,
    imports: str = "",
    **settings: str,
) -> Outcome:
    """Run the cases of `files` on `size` ranks with a GPU each; kill the ranks after `seconds`.

    `imports`, separated by commas, are imported once, before the ranks are forked.

    ``mode="shape-only"`` runs in shape-only mode; ``mode="left"`` does not destroy the groups.
    Other settings are environment variables; ``ANYRIG_TEST_GPU`` is the kind of GPU.
    """
    from forked_programs import run_forked  # a rank does not have its folder on the path

    mode = settings.pop("mode", "")
    try:
        ended = run_forked(
            *(__file__, ",".join(files), str(size), str(folder), mode, imports),
            timeout=seconds,
            MASTER_ADDR="127.0.0.1",
            **settings,
        )
        output = ended.stdout + ended.stderr
    except subprocess.TimeoutExpired as late:
        output = f"{late.stdout}{late.stderr}\n{late}"
    outcome = Outcome(output=output)
    for path in sorted(folder.glob("rank-*.jsonl")):
        for line in path.read_text().splitlines():
            case, failure = json.loads(line)
            failures = outcome.failures.setdefault(case, [])
            failures += [f"{path.stem}: {failure}"] if failure else []
    codes = folder / "exit_codes"
    outcome.exit_codes = json.loads(codes.read_text()) if codes.is_file() else []
    return outcome


@dataclass
class World:
    """The world of a case: this rank, and a group of the first n ranks for each n from 2."""

    rank: int
    size: int
    groups: dict[int, Any]
    store: Any

    @property
    def device(self) -> str:
        return f"cuda:{self.rank}"

    def own_groups(self) -> Iterator[tuple[int, Any]]:
        """Yield (size, group) for each group that this rank belongs to."""
        return ((size, group) for size, group in self.groups.items() if self.rank < size)

    def group(self, size: int, limit: float = 30) -> Any:
        """Return a new group of the first ranks, for a case to break. All ranks must call this."""
        import torch.distributed as dist

        return dist.new_group(list(range(size)), timeout=timedelta(seconds=limit))


def run_case(case: Callable[[World], None], world: World) -> str:
    started = time.perf_counter()
    try:
        case(world)
    except BaseException:
        return traceback.format_exc()
    finally:
        if world.rank == 0 and os.environ.get("ANYRIG_TEST_TIMES"):
            print(f"{time.perf_counter() - started:6.2f} s  {case.__name__}", flush=True)
    return ""


def run_rank(files: list[str], rank: int, size: int, port: int, folder: Path, mode: str) -> None:
    import torch
    import torch.distributed as dist

    from anyrig.virtual import install
    from watched_process import watched_process  # a rank does not have its folder on the path

    gpu = os.environ.get("ANYRIG_TEST_GPU", "256GiB" if mode == "shape-only" else "1GiB")
    rig = f"{size}x{gpu}"
    install(rig, shape_only=mode == "shape-only")
    torch.cuda.set_device(rank)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    limit = timedelta(seconds=30)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=limit)
    groups = {n: dist.new_group(list(range(n))) for n in range(2, size)}
    groups[size] = dist.group.WORLD
    world = World(rank, size, groups, store)
    with (
        watched_process(),
        (folder / f"rank-{rank}.jsonl").open("w", buffering=1) as out,
    ):
        for file in files:
            for name in names_of_cases(file):
                failure = run_case(getattr(importlib.import_module(file), name), world)
                out.write(json.dumps([f"{file}.{name}", failure]) + "\n")
    if mode != "left" and dist.is_initialized():
        dist.destroy_process_group()


def main(files: list[str], size: int, folder: Path, mode: str, imports: list[str]) -> None:
    # Import once, before the ranks are forked: CUDA is not in use yet.
    for name in imports:
        importlib.import_module(name)
    import torch.distributed as dist

    from anyrig.virtual import load_extension

    load_extension()
    sys.path.insert(0, str(ON_RANKS))
    gc.freeze()  # else each rank's first collection copies the pages that it shares
    children = []
    port_out, port_in = os.pipe()
    for rank in range(size):
        child = os.fork()
        if child == 0:
            port = int(os.read(port_out, 8))
            run_rank(files, rank, size, port, folder, mode)
            gc.unfreeze()  # Triton's bindings report what stays frozen
            sys.exit()  # exit as a program does, with all exit handlers
        children.append(child)
    # Created after the forks: a child would not have the store's thread.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(port_in, b"%8d" % store.port * size)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    (folder / "exit_codes").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(
        sys.argv[1].split(","),
        int(sys.argv[2]),
        Path(sys.argv[3]),
        sys.argv[4],
        [name for name in sys.argv[5].split(",") if name],
    )
