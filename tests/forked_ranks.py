"""Ranks that are forked from one process, which has imported torch: its import takes 3 s of CPU.

For tests of what ranks do. How `anyrig.launch` starts, watches and ends ranks is tested in
``tests/processes``.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import forked_programs
from watched_process import watched_process


class RanksError(Exception):
    """A rank raised or was killed, and the others were stopped."""


def run_forked(file: str, function: str, arguments: Sequence[Any], ranks: int) -> None:
    """Call a function in new ranks on the CPU, with torchrun's environment, and wait for them.

    Args:
        file: the path of the Python file that defines the function.
        function: its name.
        arguments: its arguments, which JSON can represent.
        ranks: the number of ranks.

    Raises:
        RanksError: with the output of the ranks.
        TimeoutExpired: the ranks took longer than ten minutes.
    """
    order = json.dumps([sys.path, file, function, [*arguments], ranks])
    done = forked_programs.run_forked(__file__, order, timeout=600)
    if done.returncode:
        raise RanksError(done.stdout + done.stderr)
    sys.stdout.write(done.stdout)


def main(paths: list[str], file: str, function: str, arguments: list[Any], ranks: int) -> None:
    sys.path[:] = [str(Path(file).parent), *paths]
    warnings.filterwarnings("default")  # PyTorch warns of much that the cases do
    call = getattr(importlib.import_module(Path(file).stem), function)
    from torch import multiprocessing

    from anyrig.processes.loopback import open_store

    gc.collect()
    gc.freeze()  # else the first collection of each rank copies the memory that the ranks share
    ports = [multiprocessing.Pipe(duplex=False) for _ in range(ranks)]
    started = multiprocessing.start_processes(
        run_rank,
        ([receiver for receiver, _ in ports], call, arguments),
        nprocs=ranks,
        join=False,
        start_method="fork",
    )
    store = open_store("127.0.0.1")  # not before the forks: a child would not have its thread
    for _, sender in ports:
        sender.send(store.port)
    while not started.join():
        pass


def run_rank(rank: int, ports: list[Connection], call: Any, arguments: list[Any]) -> None:
    from anyrig.processes.torch_faults import hold_destroyed_groups

    ranks = str(len(ports))
    os.environ.update(
        dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), ranks),
        GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(ports[rank].recv()),
        TORCHELASTIC_USE_AGENT_STORE="True",
        CUDA_VISIBLE_DEVICES="",
        ANYRIG_DEVICE="cpu",
    )
    hold_destroyed_groups()
    with watched_process():
        call(*arguments)


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
