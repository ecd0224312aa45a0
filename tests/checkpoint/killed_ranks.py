"""Lets four ranks save in a loop, kills one or all at a random moment, and checks what is left.

``python killed_ranks.py FOLDER KILLS SEED`` saves in each of `WAYS` in turn. It prints, for each
kill: how many ranks were killed, the announced step, the step found, and how many temporary folders
were left.

The parent has imported all that ranks need, so that a rank is one fork. The parent has no threads:
a process of its own hosts the ranks' store, which survives each kill.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import anyrig
from anyrig.checkpoint import BackgroundSaver

RANKS = 4
LIMIT_SECONDS = 60.0
# By name: whether the model is in shards, `sharded` of the save, and whether a thread writes.
WAYS: dict[str, tuple[bool, bool | None, bool]] = {
    "rank-0": (True, False, False),
    "shards": (True, None, False),
    "divided": (False, True, False),
    "background": (True, None, True),
}


def make_objects(in_shards: bool) -> dict[str, Any]:
    model: nn.Module = nn.Sequential(nn.Linear(32, 30), nn.Linear(30, 32), nn.BatchNorm1d(32))
    if dist.is_initialized():
        model = fully_shard(model) if in_shards else DistributedDataParallel(model)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)}


def fill(objects: dict[str, Any], step: int) -> None:
    with torch.no_grad():
        for parameter in objects["model"].parameters():
            parameter.fill_(step)
            buffer = torch.full_like(parameter, step)
            objects["optimizer"].state[parameter]["momentum_buffer"] = buffer


def assert_filled(objects: dict[str, Any], step: int) -> None:
    for parameter in objects["model"].parameters():
        momentum = objects["optimizer"].state[parameter]["momentum_buffer"]
        for tensor in (parameter, momentum):
            part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            assert (part == step).all()


def save_in_a_loop(folder: Path, way: str, announce: Callable[[int], None]) -> None:
    in_shards, sharded, is_background = WAYS[way]
    objects, step = make_objects(in_shards), 0
    if folder.exists():
        step = anyrig.load(folder, **objects).step or 0
        assert_filled(objects, step)
    saver = BackgroundSaver(folder, keep=2, sharded=sharded)
    while True:
        step += 1
        fill(objects, step)
        if is_background:
            saver.save(step=step, **objects)
            saver.wait()
        else:
            anyrig.save(folder, step=step, keep=2, sharded=sharded, **objects)
        announce(step)


def start_rank(
    rank: int,
    trial: str,
    port: int,
    work: Callable[[Callable[[int], None]], None],
    ranks: int = RANKS,
    limit_seconds: float = LIMIT_SECONDS,
) -> tuple[int, int]:
    """Fork a rank; return its process number, and a pipe of the steps that it announces."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(trial, store),
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=limit_seconds),
        )
        work(lambda step: os.write(writer, f"{step}\n".encode()) and None)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def kill_once(folder: Path, way: str, trial: str, port: int, draw: random.Random) -> list[int]:
    """Return how many ranks were killed first, and the last step that a rank has announced."""
    ranks = [
        start_rank(rank, trial, port, lambda announce: save_in_a_loop(folder, way, announce))
        for rank in range(RANKS)
    ]
    pipes = [pipe for _, pipe in ranks]
    ready, _, _ = select.select(pipes, [], [], LIMIT_SECONDS)  # at least one save
    time.sleep(draw.uniform(0, 0.08))
    victims = draw.sample(ranks, draw.choice([1, RANKS]))
    for child, _ in victims:
        os.kill(child, signal.SIGKILL)
    time.sleep(draw.uniform(0, 0.05))  # what the others do until the launcher ends them
    for child, _ in ranks:
        if all(child != dead for dead, _ in victims):
            os.kill(child, signal.SIGKILL)
    statuses = {child: os.waitpid(child, 0)[1] for child, _ in ranks}
    text = ""
    for pipe in pipes:
        with os.fdopen(pipe) as lines:
            text += lines.read()
    assert ready, "no save has ended in time"
    # The other ranks may have seen a connection close, and ended with an error.
    assert all(os.WIFSIGNALED(statuses[child]) for child, _ in victims), "a rank ended by itself"
    return [len(victims), max(int(step) for step in text.split())]


def start_store() -> tuple[int, int]:
    """Fork a process that hosts a store; return its process number and its port."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        with os.fdopen(reader) as port:
            return child, int(port.readline())
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(writer, f"{store.port}\n".encode())
    while True:
        signal.pause()


def main(folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # The ranks inherit what this imports.
    objects = make_objects(in_shards=False)
    fill(objects, 0)
    anyrig.save(folder / "warm", **objects)
    anyrig.load(folder / "warm", **objects)
    host, port = start_store()
    draw = random.Random(seed)
    try:
        for trial in range(kills):
            way = [*WAYS][trial % len(WAYS)]
            facts = kill_once(folder / way, way, str(trial), port, draw)
            found = anyrig.load(folder / way, **objects)
            assert found.step is not None
            assert_filled(objects, found.step)
            left = sum(path.name.startswith(".tmp-") for path in (folder / way).iterdir())
            print(*facts, found.step, left, flush=True)
    finally:
        os.kill(host, signal.SIGKILL)
        os.waitpid(host, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
