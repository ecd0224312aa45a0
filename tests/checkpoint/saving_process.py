"""A process that saves in a loop and gets a signal at a random moment."""

from __future__ import annotations

import os
import random
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import anyrig


def make_objects() -> dict[str, Any]:
    model = nn.Linear(64, 64)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)}


def load_step(folder: Path, **objects: Any) -> int:
    """Load the latest checkpoint of a series if there is one, and return its step, or 0."""
    if not folder.exists():
        return 0
    step = anyrig.load(folder, **objects).step or 0
    assert (objects["model"].weight == step).all()
    return step


def random_moments(folder: Path, count: int, seed: int) -> Iterator[float]:
    """Import modules for the forked processes, and yield how long each may save, in seconds."""
    torch.set_num_threads(1)
    objects = make_objects()
    anyrig.save(folder.with_name("warm"), **objects)
    anyrig.load(folder.with_name("warm"), **objects)
    draw = random.Random(seed)
    for _ in range(count):
        yield draw.uniform(0, 0.05)


def signal_one(work: Callable[[int], object], seconds: float, number: int) -> tuple[str, int]:
    """Return what a process wrote to its pipe, and its wait status.

    Args:
        work: what the process does, given the pipe; it writes after each save.
        seconds: when to send the signal, after the first save.
        number: the signal.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            work(writer)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read(1)
        assert text, "the process ended before its first save"
        time.sleep(seconds)
        os.kill(child, number)
        text += pipe.read()
    return text.decode(), os.waitpid(child, 0)[1]
