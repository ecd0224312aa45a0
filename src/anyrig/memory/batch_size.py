"""Find the largest batch that a training step can compute."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ..errors import MemoryTrackingError
from ..units import format_bytes
from .failed_step import empty_caches, is_out_of_memory
from .program_state import ProgramState

_MOST_PROBES = 12
# The search ends when the largest batch that fits is known to this fraction.
_RESOLUTION = 0.01
# The factor between two batches as long as the peaks predict nothing.
_GROWTH = 8
# The largest factor between a batch that fits and a predicted batch that is tried at once.
_REACH = 4
# Peaks predict only if the larger batch's peak exceeds the smaller one's by this fraction. Below
# it, the optimizer's step may determine both.
_LEAST_RISE = 0.5


@dataclass(frozen=True)
class Probe:
    """One step that was tried.

    Attributes:
        samples: the size of its batch.
        fits: whether the step ended without running out of memory.
        peak_bytes: the largest number of bytes that PyTorch had allocated on a device; None if the
            batch did not fit, or if no peak exceeded the program's earlier peaks.
    """

    samples: int
    fits: bool
    peak_bytes: int | None


@dataclass(frozen=True)
class BatchFit:
    """The largest batch that fits, and how it was found.

    Attributes:
        samples: the batch size to use.
        largest_samples: the largest batch that fit.
        reason: what ended the search.
        probes: the batches that were tried, in order.
        micro_batches: the sizes of the micro-batches of one global batch, if `global_batch` was
            given. Their sum is the global batch, and they differ by at most one sample.
    """

    samples: int
    largest_samples: int
    reason: str
    probes: tuple[Probe, ...]
    micro_batches: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return the result and a line for each probe."""
        lines = [f"batches of {self.samples} fit: {self.reason}"]
        if self.micro_batches:
            count, sizes = len(self.micro_batches), sorted({*self.micro_batches}, reverse=True)
            of = " or ".join(map(str, sizes))
            lines.append(f"a global batch of {sum(self.micro_batches)} takes {count} of {of}")
        for probe in self.probes:
            peak = "" if probe.peak_bytes is None else f", peak {format_bytes(probe.peak_bytes)}"
            lines.append(f"  {probe.samples}: {'fits' if probe.fits else 'out of memory'}{peak}")
        return "\n".join(lines)


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

    At most 12 batches are tried. Their peaks predict the limit, and batches below and above it
    confirm it to 1 %. The first batch is computed twice, so that the optimizer has its state.

    Afterwards the parameters, buffers and gradients of all modules, and the state of all
    optimizers, schedulers, `GradScaler`s and random number generators are as before. Other changes
    stay, such as those of a list to which `step` appends. Statistics of peak memory are not reset.

    Args:
        step: computes one training step with the given number of samples: forward, backward, and
            the optimizer's step. If samples differ in length, it must use the longest ones.
        start: the first batch to try, in samples.
        largest: the largest batch to try, such as the size of the dataset.
        global_batch: the samples of one optimizer step, to be divided into micro-batches that fit.
            No larger batch is tried.
        margin: the fraction by which `samples` is smaller than `largest_samples`, for what varies
            between steps.

    Returns:
        The batch, the reason, and every batch that was tried; ``print`` shows a line for each.

    Raises:
        MemoryTrackingError: an argument is out of range, there is no CUDA device, or this process
            is one of several ranks.
        torch.OutOfMemoryError: a batch of one sample does not fit.
        Exception: any other exception of `step`. The state is restored first.
    """
    limit = _check(start, largest, global_batch, margin)
    state = ProgramState()
    search = _Search(step, state, limit)
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
        count = math.ceil(global_batch / samples)
        least, more = divmod(global_batch, count)
        micro_batches = (least + 1,) * more + (least,) * (count - more)
    return BatchFit(samples, search.fits, reason, tuple(search.probes), micro_batches)


def _check(start: int, largest: int | None, global_batch: int | None, margin: float) -> int | None:
    """Return the largest batch to try, or None."""
    for name, value in (("start", start), ("largest", largest), ("global_batch", global_batch)):
        if value is not None and value < 1:
            raise MemoryTrackingError(f"{name}={value} is no number of samples; give at least 1")
    if not 0 <= margin < 1:
        raise MemoryTrackingError(
            f"margin={margin} is no fraction of the batch; give 0 or more, below 1"
        )
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise MemoryTrackingError(
            f"this process is one of {dist.get_world_size()} ranks, and the other ranks would wait "
            "for a rank that runs out of memory; find the batch in one process, on the smallest GPU"
        )
    if not torch.cuda.is_available():
        raise MemoryTrackingError(
            "there is no CUDA device; to find the batch for a GPU that this machine does not have, "
            "run: anyrig rehearse --rig RTX4090 --shape-only SCRIPT"
        )
    return min((each for each in (largest, global_batch) if each is not None), default=None)


class _Search:
    """The search for the largest batch that fits: by peaks as long as they predict it."""

    def __init__(
        self, step: Callable[[int], object], state: ProgramState, limit: int | None
    ) -> None:
        self._step = step
        self._state = state
        self._limit = limit
        self._peaks: list[tuple[int, Mapping[int, int]]] = []  # of batches that fit, by device
        self._fails: int | None = None
        self._distance = 2 * _RESOLUTION  # from a batch that is near the limit to the next one
        self.probes: list[Probe] = []
        self.fits = 0

    def run(self, start: int) -> str:
        """Search from a first batch, and return the reason for the end."""
        samples = start
        while True:
            self._probe(samples)
            if self.fits == self._limit:
                return "no larger batch was asked for"
            if self._fails is not None and self._fails - self.fits <= max(
                1, self.fits * _RESOLUTION
            ):
                return f"{self._fails} ran out of memory"
            if len(self.probes) == _MOST_PROBES and self.fits:
                known = "" if self._fails is None else f"; {self._fails} ran out of memory"
                return f"the limit of {_MOST_PROBES} probes was reached{known}"
            samples = self._choose()

    def _probe(self, samples: int) -> None:
        empty_caches()
        before = _peaks()
        had_gradients = self._state.with_gradients()
        try:
            self._step(samples)
            if not self.fits:
                self._step(samples)
        except RuntimeError as error:
            if not is_out_of_memory(error) or samples == 1:
                raise
            traceback.clear_frames(error.__traceback__)
            self._state.drop_gradients(but=had_gradients if self.fits else set())
            self._fails = samples
            self.probes.append(Probe(samples, False, None))
            return
        self.fits = samples
        after = _peaks()
        risen = {device: peak for device, peak in after.items() if peak > before[device]}
        if risen:
            self._peaks.append((samples, risen))
        self.probes.append(Probe(samples, True, max(risen.values(), default=None)))

    def _choose(self) -> int:
        fits, fails, predicted = self.fits, self._fails, self._predict()
        if fails is None:
            chosen = self._choose_larger(predicted)
            return min(max(chosen, fits + 1), self._limit or chosen)
        if not fits:
            return max(1, fails // _GROWTH)
        if predicted is not None and predicted >= fails:  # so the limit is just below
            chosen = max(math.floor(fails * (1 - self._distance)), (fits + fails) // 2)
            self._distance *= 2
        elif predicted is not None and predicted > fits:
            chosen = predicted
        else:
            chosen = min((fits + fails) // 2, math.isqrt(fits * fails))
        return min(max(chosen, fits + 1), fails - 1)

    def _choose_larger(self, predicted: int | None) -> int:
        if predicted is None:
            return _GROWTH * self.fits
        if predicted > _REACH * self.fits:
            return predicted // 2
        if predicted > self.fits * (1 + _RESOLUTION):
            return predicted
        self._distance *= 2  # it fits, although more than was predicted
        return math.ceil(self.fits * (1 + self._distance / 2))

    def _predict(self) -> int | None:
        """Return the batch at which a device reaches its limit; None if two peaks do not tell.

        A peak is taken for a constant and a part in proportion to the samples.
        """
        if len(self._peaks) < 2:
            return None
        (fewer, low), (more, high) = self._peaks[-2:]
        predictions = []
        for device in low.keys() & high.keys():
            rise = high[device] - low[device]
            if rise > _LEAST_RISE * high[device]:
                free = _limit_bytes(device) - high[device]
                predictions.append(more + math.floor(free * (more - fewer) / rise))
        return min(predictions, default=None)


def _peaks() -> dict[int, int]:
    return {
        device: torch.cuda.max_memory_allocated(device)
        for device in range(torch.cuda.device_count())
    }


def _limit_bytes(device: int) -> int:
    """Return how much PyTorch may allocate on a device, with what it has already."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    of_process = torch.cuda.get_per_process_memory_fraction(device) * total_bytes
    return min(int(of_process), free_bytes + torch.cuda.memory_reserved(device))
