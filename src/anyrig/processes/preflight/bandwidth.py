"""Run an all-reduce over all ranks, and measure its bandwidth."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from ...devices.rig import Rig
from ...errors import LaunchError
from ...units import format_bytes
from ..launch import call_in_ranks
from ..options import RunOptions
from .finding import Finding, bad, good

if TYPE_CHECKING:
    import torch

BYTES = 64 * 2**20
_ROUNDS = 3


def check_all_reduce(rig: Rig, options: RunOptions, limit_seconds: float) -> Finding:
    """Start all ranks, and time an all-reduce of 64 MiB; each wait ends after `limit_seconds`."""
    if options.is_one_rank:
        return good("all-reduce", "a single rank has no other rank to communicate with")
    try:
        seconds, world_size, backend = call_in_ranks(
            _measure, (limit_seconds,), {}, rig, options
        ) or (None, 0, "")
    except LaunchError as error:
        return bad(
            "all-reduce",
            f"the ranks started, but their all-reduce failed: {error}",
            "see the first error above; with NCCL, NCCL_DEBUG=INFO in the environment shows more",
        )
    if seconds is None:  # rank 0 is on another node, which reports the bandwidth
        return good("all-reduce", "the all-reduce of this node's ranks succeeded")
    speed = format_bytes(int(link_bytes_per_second(BYTES, world_size, seconds)))
    return good(
        "all-reduce",
        f"{format_bytes(BYTES)} over {world_size} ranks by {backend} in {seconds * 1e3:.1f} ms: "
        f"{speed}/s on each link of a ring",
    )


def link_bytes_per_second(nbytes: int, ranks: int, seconds: float) -> float:
    """Return the *bus bandwidth* of NCCL's tests: the bytes per second over each link of a ring.

    Each rank sends (ranks - 1) / ranks of the bytes to its neighbour for the sums, then as many to
    distribute the sums. Source: doc/PERFORMANCE.md of https://github.com/NVIDIA/nccl-tests.
    """
    return 2 * (ranks - 1) / ranks * nbytes / seconds


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that `device` takes for the operators that `work` launches."""
    import torch

    if device.type == "cpu":
        started = time.perf_counter()
        work()
        return time.perf_counter() - started
    begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    stream = torch.accelerator.current_stream(device)
    begin.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def refuse_wrong_sum(numbers: torch.Tensor, expected: float) -> None:
    """Check that every element is `expected`.

    Raises:
        RuntimeError: an element differs; the message gives the first such element.
    """
    wrong = numbers[numbers != expected]
    if len(wrong):
        raise RuntimeError(
            f"rank {os.environ['RANK']} has the sum {wrong[0].item()} instead of {expected}"
        )


def _measure(limit_seconds: float) -> tuple[float, int, str]:
    """Return (seconds of the fastest round, number of ranks, backend)."""
    import torch
    import torch.distributed as dist

    device = Rig.detect().lead.torch_device
    backend = "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        timeout=timedelta(seconds=limit_seconds),
        device_id=device if backend == "nccl" else None,
    )
    numbers = torch.ones(BYTES // 4, device=device if backend == "nccl" else "cpu")
    fastest = float("inf")
    for _ in range(_ROUNDS):
        dist.barrier()
        fastest = min(fastest, seconds_of(lambda: dist.all_reduce(numbers), numbers.device))
    world_size = dist.get_world_size()
    refuse_wrong_sum(numbers, float(world_size) ** _ROUNDS)
    dist.destroy_process_group()
    return fastest, world_size, backend
