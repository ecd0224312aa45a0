"""Runs cases in the ranks of one world, started once for many cases: a start costs seconds.

Cases are the functions called ``case_...`` of a file in ``on_ranks``, in the order in which they
stand there. Each takes the world and runs on every rank; a rank's failure is the text of it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
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
    """Return the names without running the file, which needs a rig."""
    lines = (ON_RANKS / f"{file}.py").read_text().splitlines()
    return [line[4:].partition("(")[0] for line in lines if line.startswith("def case_")]


@dataclass
class Outcome:
    """What came of a file's cases."""

    failures: dict[str, list[str]] = field(default_factory=dict)
    exit_codes: list[int] = field(default_factory=list)
    output: str = ""

    def check(self, case: str) -> None:
        assert case in self.failures, f"did not come to {case}:\n{self.output}"
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
    """Run the cases of `files` on `size` ranks, a card each, and end whatever is left of them.

    `imports`, with commas, are imported once before the ranks are forked, not in each of them.

    ``mode="shape-only"`` is a way to run, ``mode="left"`` leaves the groups to the end of the
    process; other settings are words of the environment, ``ANYRIG_TEST_CARD`` the kind of card.
    """
    mode = settings.pop("mode", "")
    process = subprocess.Popen(
        [
            *(sys.executable, "-W", "error", __file__),
            *(",".join(files), str(size), str(folder), mode, imports),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        output += f"\nnot done after {seconds:.0f} s"
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
    """The ranks as a case sees them: this one, and groups of 2 and more of the first ones."""

    rank: int
    size: int
    groups: dict[int, Any]
    store: Any

    @property
    def device(self) -> str:
        return f"cuda:{self.rank}"

    def mine(self) -> Iterator[tuple[int, Any]]:
        """Give each group that this rank is in, with its size."""
        return ((size, group) for size, group in self.groups.items() if self.rank < size)

    def group(self, size: int, limit: float = 30) -> Any:
        """Return a new group of the first ranks, for a case that will break it; all call this."""
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

    card = os.environ.get("ANYRIG_TEST_CARD", "256GiB" if mode == "shape-only" else "1GiB")
    rig = f"{size}x{card}"
    install(rig, shape_only=mode == "shape-only")
    torch.cuda.set_device(rank)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    limit = timedelta(seconds=30)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=limit)
    groups = {n: dist.new_group(list(range(n))) for n in range(2, size)}
    groups[size] = dist.group.WORLD
    world = World(rank, size, groups, store)
    with (folder / f"rank-{rank}.jsonl").open("w", buffering=1) as out:
        for file in files:
            for name in names_of_cases(file):
                failure = run_case(getattr(importlib.import_module(file), name), world)
                out.write(json.dumps([f"{file}.{name}", failure]) + "\n")
    if mode != "left" and dist.is_initialized():
        dist.destroy_process_group()


def main(files: list[str], size: int, folder: Path, mode: str, imports: list[str]) -> None:
    # Once for all ranks, which are forked: nothing of CUDA is in use yet.
    for name in imports:
        importlib.import_module(name)
    import torch.distributed as dist

    from anyrig.virtual import load_extension

    load_extension()
    sys.path.insert(0, str(ON_RANKS))
    gc.freeze()  # else a rank's first collection copies every page that it shares with this process
    children = []
    port_out, port_in = os.pipe()
    for rank in range(size):
        child = os.fork()
        if child == 0:
            port = int(os.read(port_out, 8))
            run_rank(files, rank, size, port, folder, mode)
            sys.exit()  # as a program ends, with all that is called then
        children.append(child)
    # Its thread would be missing in a child.
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
