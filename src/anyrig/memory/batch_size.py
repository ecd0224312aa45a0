"""Find the largest batch that a training step can compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ..errors import MemoryTrackingError
from .batch_parts import divide_evenly
from .batch_search import Probe, Search, Steps
from .failed_step import empty_caches
from .program_state import ProgramState

# An optimizer step of more micro-batches than this is a mistake.
_MOST_MICRO_BATCHES = 1_000_000


@dataclass(frozen=True)
class BatchFit:
    """The largest batch that fits, and how it was found.

    On several ranks, `samples` and `largest_samples` count one rank's batch, the same on all ranks.

    Attributes:
        samples: the batch size to use.
        largest_samples: the largest batch that fit.
        reason: what ended the search.
        probes: the batches that were tried, in order.
        micro_batches: the sizes of this rank's micro-batches of one global batch, if
            `global_batch` was given. They differ by at most one sample. All ranks have the same
            number of them, and the sum over all ranks is the global batch.
    """

    samples: int
    largest_samples: int
    reason: str
    probes: tuple[Probe, ...]
    micro_batches: tuple[int, ...] = ()
    global_batch: int | None = None

    def __str__(self) -> str:
        """Return the result and a line for each probe."""
        lines = [f"batches of {self.samples} fit: {self.reason}"]
        if self.micro_batches:
            count, sizes = len(self.micro_batches), sorted({*self.micro_batches}, reverse=True)
            of = " or ".join(map(str, sizes))
            where = "" if sum(self.micro_batches) == self.global_batch else " on this rank"
            lines.append(f"a global batch of {self.global_batch} takes {count} of {of}{where}")
        return "\n".join(lines + [f"  {probe}" for probe in self.probes])


def fit_batch_size(
    step: Callable[[int], object],
    *,
    start: int = 1,
    largest: int | None = None,
    global_batch: int | None = None,
    margin: float = 0.01,
) -> BatchFit:
    """Find the largest batch that `step` can compute, and restore the program's state.

    ::

        def step(samples: int) -> None:
            x, y = dataset[:samples]
            criterion(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
            optimizer.zero_grad()

        fit = anyrig.memory.fit_batch_size(step, global_batch=512)
        loader = DataLoader(dataset, batch_size=fit.samples)

    At most 12 batches are tried. Their peaks predict the limit, and batches below and above the
    limit confirm it to 1 %. The first batch is computed twice, so that the optimizer has its state.

    On several ranks, call `fit_batch_size` on every rank. All ranks try the same batches and get
    the same result, and a batch fits if it fits on every rank. After a step that failed on any
    rank, DDP, FSDP2 and spread models are made ready for another step.

    Afterwards the parameters, buffers and gradients of all modules, and the state of all
    optimizers, schedulers, `GradScaler`s and random number generators are as before. Other changes
    remain, such as entries that `step` appends to a list. Statistics of peak memory are not reset.

    Args:
        step: computes one training step with the given number of samples: forward, backward, and
            the optimizer's step. If samples differ in length, it must use the longest ones.
        start: the first batch to try, in samples.
        largest: the largest batch to try, such as the size of the dataset.
        global_batch: the samples of one optimizer step on all ranks, to be divided into
            micro-batches that fit. No larger batch is tried.
        margin: the fraction by which `samples` is smaller than `largest_samples`, because steps
            differ in their need of memory.

    Returns:
        The batch, the reason, and every batch that was tried; ``print`` shows a line for each.

    Raises:
        MemoryTrackingError: an argument is out of range, there is no CUDA device, `global_batch`
            takes more than a million micro-batches, or a model on several ranks cannot recover
            from a failed step.
        OtherRankError: the step failed on another rank.
        RankMismatchError: the ranks did not call the same collectives within the step.
        torch.OutOfMemoryError: a batch of one sample does not fit.
        Exception: any other exception of `step`. The state is restored first.
    """
    rank, world_size = _find_rank()
    limit = _check(start, largest, global_batch, margin, world_size)
    steps = Steps(step)
    state = ProgramState()
    search = Search(steps, state, limit)
    try:
        reason = search.run(min(start, limit or start))
    finally:
        state.restore()
        empty_caches()
    samples = search.fits
    if samples != limit:
        samples = max(1, math.floor(samples * (1 - margin)))
    micro_batches: tuple[int, ...] = ()
    if global_batch is not None:
        count = _divide_up(_divide_up(global_batch, world_size), samples)
        if count > _MOST_MICRO_BATCHES:
            raise MemoryTrackingError(
                f"global_batch={global_batch} takes {count} micro-batches of {samples} samples on "
                f"each rank, more than {_MOST_MICRO_BATCHES}; give a smaller global batch, or "
                "leave it out to find the largest batch alone"
            )
        _, of_rank = divide_evenly(global_batch, world_size)[rank]
        micro_batches = tuple(size for _, size in divide_evenly(of_rank, count))
    probes = tuple(search.probes)
    return BatchFit(samples, search.fits, reason, probes, micro_batches, global_batch)


def _divide_up(number: int, divisor: int) -> int:
    """Return the quotient, rounded up; exact for numbers of any size."""
    return (number + divisor - 1) // divisor


def _find_rank() -> tuple[int, int]:
    """Return the rank of this process, and the number of ranks."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _check(
    start: int,
    largest: int | None,
    global_batch: int | None,
    margin: float,
    world_size: int,
) -> int | None:
    """Return the largest batch to try; None if the arguments set no limit."""
    for name, value in (("start", start), ("largest", largest), ("global_batch", global_batch)):
        if value is not None and value < 1:
            raise MemoryTrackingError(f"{name}={value} is not a number of samples; give 1 or more")
    if not 0 <= margin < 1:
        raise MemoryTrackingError(
            f"margin={margin} is not a fraction of the batch; give 0 or more, below 1"
        )
    if global_batch is not None and global_batch < world_size:
        raise MemoryTrackingError(
            f"global_batch={global_batch} gives {world_size} ranks less than one sample each; give "
            f"at least {world_size}"
        )
    if not torch.cuda.is_available():
        raise MemoryTrackingError(
            "there is no CUDA device; to find the batch for a GPU that this machine does not have, "
            "run: anyrig rehearse --rig RTX4090 --shape-only SCRIPT"
        )
    of_rank = None if global_batch is None else _divide_up(global_batch, world_size)
    return min((each for each in (largest, of_rank) if each is not None), default=None)
