"""The search for the largest batch that a training step can compute, on all ranks together."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..errors import OtherRankError
from ..units import format_bytes
from .failed_step import empty_caches, is_out_of_memory
from .program_state import ProgramState
from .rank_agreement import join_ranks, name_ranks

_MOST_PROBES = 12
# The search ends when the largest batch that fits is known to this fraction.
_RESOLUTION = 0.01
# The factor between two batches while the peaks do not predict the limit yet.
_GROWTH = 8
# The largest factor between a batch that fits and a predicted batch that is tried directly.
_REACH = 4
# Peaks predict the limit only if the larger batch's peak exceeds the smaller batch's peak by this
# fraction. Below it, the optimizer's step may determine both peaks.
_LEAST_RISE = 0.5


@dataclass(frozen=True)
class Probe:
    """One step that was tried.

    Attributes:
        samples: the size of its batch.
        fits: whether the step ended without running out of memory.
        peak_bytes: the largest number of bytes that PyTorch had allocated on a device of this rank;
            None if the batch did not fit, or if no peak exceeded the program's earlier peaks.
        failed: the ranks that ran out of memory; empty in a single process.
    """

    samples: int
    fits: bool
    peak_bytes: int | None
    failed: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return the batch size and the result, in one line."""
        if not self.fits:
            return f"{self.samples}: out of memory" + _where(self.failed)
        peak = "" if self.peak_bytes is None else f", peak {format_bytes(self.peak_bytes)}"
        return f"{self.samples}: fits{peak}"


class Steps:
    """Computes steps on all ranks, and repairs the models if a step fails on any rank."""

    def __init__(self, step: Callable[[int], object]) -> None:
        self._step = step
        self._ranks = join_ranks()

    def least(self, number: int | None) -> int | None:
        """Return the smallest of all ranks' numbers, ignoring None."""
        return self._ranks.least(number)

    def compute(self, samples: int, times: int) -> tuple[int, ...] | None:
        """Compute steps with `samples` on each rank.

        Returns:
            None if all steps completed; otherwise the ranks that ran out of memory, or an empty
            tuple in a single process.
        """
        self._ranks.begin(1, 1)
        try:
            with self._ranks.guard():
                for _ in range(times):
                    self._step(samples)
            self._ranks.end()
        except Exception as error:
            failed = self._stop(error)
            if samples > 1:
                traceback.clear_frames(error.__traceback__)
                return failed
            if is_out_of_memory(error):
                raise
            raise OtherRankError(
                f"{name_ranks(failed)} ran out of memory in a step with one sample"
            ) from None
        return None

    def _stop(self, error: Exception) -> tuple[int, ...]:
        try:
            return tuple(self._ranks.stop(error))
        finally:
            self._ranks.undo_failed_step()


class Search:
    """Searches for the largest batch that fits, which the peaks of earlier batches predict."""

    def __init__(self, steps: Steps, state: ProgramState, limit: int | None) -> None:
        self._steps = steps
        self._state = state
        self._limit = limit
        self._peaks: list[tuple[int, Mapping[int, int]]] = []  # of batches that fit, by device
        self._fails: int | None = None
        self._distance = 2 * _RESOLUTION  # from a batch that is near the limit to the next one
        self.probes: list[Probe] = []
        self.fits = 0

    def run(self, start: int) -> str:
        """Search, beginning with a batch of `start` samples; return why the search ended."""
        samples = start
        while True:
            self._probe(samples)
            if self.fits == self._limit:
                return "no larger batch was asked for"
            if self._fails is not None and self._fails - self.fits <= max(
                1, self.fits * _RESOLUTION
            ):
                return self._describe_failure()
            if len(self.probes) == _MOST_PROBES and self.fits:
                known = "" if self._fails is None else f"; {self._describe_failure()}"
                return f"the limit of {_MOST_PROBES} probes was reached{known}"
            samples = self._choose()

    def _describe_failure(self) -> str:
        failed = next(probe.failed for probe in self.probes if probe.samples == self._fails)
        return f"{self._fails} ran out of memory{_where(failed)}"

    def _probe(self, samples: int) -> None:
        empty_caches()
        before = _peaks()
        had_gradients = self._state.with_gradients()
        failed = self._steps.compute(samples, times=1 if self.fits else 2)
        if failed is not None:
            self._state.drop_gradients(but=had_gradients if self.fits else set())
            self._fails = samples
            self.probes.append(Probe(samples, False, None, failed))
            return
        self.fits = samples
        after = _peaks()
        risen = {device: peak for device, peak in after.items() if peak > before[device]}
        if risen:
            self._peaks.append((samples, risen))
        self.probes.append(Probe(samples, True, max(risen.values(), default=None)))

    def _choose(self) -> int:
        fits, fails, predicted = self.fits, self._fails, self._steps.least(self._predict())
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
        self._distance *= 2  # it fits, although the prediction was smaller
        return math.ceil(self.fits * (1 + self._distance / 2))

    def _predict(self) -> int | None:
        """Return the largest batch that two peaks predict to fit; None if they predict none.

        A peak is modelled as a constant plus a part in proportion to the samples.
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


def _where(failed: Sequence[int]) -> str:
    return f" on {name_ranks(failed)}" if failed else ""


def _peaks() -> dict[int, int]:
    return {
        device: torch.cuda.max_memory_allocated(device)
        for device in range(torch.cuda.device_count())
    }


def _limit_bytes(device: int) -> int:
    """Return how much PyTorch may reserve on a device, including what it has reserved."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    of_process = torch.cuda.get_per_process_memory_fraction(device) * total_bytes
    return min(int(of_process), free_bytes + torch.cuda.memory_reserved(device))
