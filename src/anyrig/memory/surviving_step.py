"""Compute a step again in smaller parts if it runs out of memory."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor, nn

# Private, but the common base of the layers that compute with statistics of their batch.
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import MemoryTrackingError, OtherRankError
from ..private_names import refuse_missing
from .batch_parts import Batch, divide_evenly
from .failed_step import add_note, is_out_of_memory, release_step
from .rank_agreement import Ranks, join_ranks, name_ranks
from .step_state import StepState, find_modules

_MANY = 2**62


def survive(
    loss_of: Callable[..., Tensor],
    *,
    count: Callable[..., float | Tensor] | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    backward: Callable[[Tensor], object] = Tensor.backward,
    batch_norm_in_parts: bool = False,
    largest_part: int | None = None,
) -> SurvivingStep:
    """Return a step that is computed again in smaller parts if it runs out of memory.

    ::

        step = anyrig.memory.survive(lambda x, y: criterion(model(x), y))
        for x, y in loader:
            loss = step(x, y)          # forward and backward
            optimizer.step()
            optimizer.zero_grad()

    See `SurvivingStep`. Call `survive` after the modules are built and wrapped; on several ranks,
    call it on every rank.

    Args:
        loss_of: computes the loss of the samples in its arguments, as one number: their mean, or
            their sum. It does not call ``backward()``.
        count: called with the arguments of a part; returns the number of items over which the loss
            of this part is the mean, such as ``(labels != -100).sum()``. By default the number of
            samples.
        reduction: whether the loss is a mean or a sum.
        backward: computes the gradients of a loss, such as
            ``lambda loss: scaler.scale(loss).backward()``.
        batch_norm_in_parts: divide steps even if layers of batch normalization then compute with
            the statistics of parts, so that gradients differ.
        largest_part: the most samples that a part may have, as in `SurvivingStep`.

    Raises:
        MemoryTrackingError: this process is one of several ranks, and its models cannot recover
            from a failed step.
    """
    return SurvivingStep(loss_of, count, reduction, backward, batch_norm_in_parts, largest_part)


class SurvivingStep:
    """A forward and backward pass that survives running out of memory.

    ::

        step(x, y)    64 samples ── out of memory
                      32 ── 32                        the same gradients, and a warning
        step(x, y)    32 ── 32                        stays small
                      32 ── out of memory
                      16 ── 16 ── 16 ── 16

    A call divides its tensors along dimension 0, weights the loss of each part by its samples, adds
    up the gradients, and returns the loss of all samples, detached. Before each new attempt, it
    restores the gradients, buffers and random numbers. The gradients equal those of the undivided
    batch, except with layers that mix samples, and with random operators such as dropout, for which
    each part draws its own numbers.

    All ranks divide their batches into the same number of parts. DDP and FSDP2 average gradients
    over the ranks, and `anyrig.spread` over the samples of all ranks, as without `survive`.

    Args:
        loss_of: as `count`, `reduction`, `backward`, `batch_norm_in_parts` and `largest_part`, an
            argument of `survive`.

    Attributes:
        largest_part: the most samples that a part may have; None as long as every step has fitted
            undivided.
    """

    def __init__(
        self,
        loss_of: Callable[..., Tensor],
        count: Callable[..., float | Tensor] | None,
        reduction: Literal["mean", "sum"],
        backward: Callable[[Tensor], object],
        batch_norm_in_parts: bool,
        largest_part: int | None,
    ) -> None:
        refuse_missing("memory")
        if reduction not in ("mean", "sum"):
            raise MemoryTrackingError(f'reduction={reduction!r} is neither "mean" nor "sum"')
        is_count = isinstance(largest_part, int) and largest_part >= 1
        if largest_part is not None and not is_count:
            raise MemoryTrackingError(
                f"largest_part={largest_part!r} is not a number of samples; give 1 or more"
            )
        self.largest_part = largest_part
        self._loss_of = loss_of
        self._count = count
        self._is_mean = reduction == "mean"
        self._backward = backward
        self._batch_norm_in_parts = batch_norm_in_parts
        self._modules = [weakref.ref(module) for module in find_modules()]
        for module in self._known_modules():
            # Duck-typed, because rooms above this one spread modules.
            layout = getattr(vars(module).get("_engine"), "layout", None)
            if getattr(layout, "exact", None) is not None:
                raise MemoryTrackingError(
                    "a model is spread with Exact, and its bits would depend on when "
                    "memory runs out; leave out survive(), and use more logical shards"
                )
            if getattr(layout, "accumulate", False):
                raise MemoryTrackingError(
                    "a model is spread with accumulate=True, which weights each backward pass, and "
                    "survive() weights its parts, too; leave out accumulate=True"
                )
        self._has_failed = False
        self._ranks = join_ranks()
        self._averages_samples = self._has_global_loss = False
        if isinstance(self._ranks, Ranks):
            from .wrapped_models import average_samples, have_global_loss

            self._averages_samples = average_samples()
            self._has_global_loss = have_global_loss()

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the loss of a batch and its gradients, in as many parts as memory requires.

        Args:
            args: the arguments of `loss_of`. Tensors, also in tuples, lists and dicts, have one
                entry for each sample along dimension 0. Other values are passed to every part.
            kwargs: its keyword arguments.

        Returns:
            The loss of the undivided batch, detached.

        Raises:
            torch.OutOfMemoryError: the step cannot be divided further; a note says why.
            OtherRankError: another rank has failed.
            RankMismatchError: the ranks did not call the same collectives within the step.
            MemoryTrackingError: the batch cannot be divided as `largest_part` requires, or the step
                returned no loss.
        """
        batch = Batch(args, kwargs)
        wanted = math.ceil(batch.samples / self.largest_part) if self.largest_part else 1
        refusal = self._refusal(batch)
        if refusal is not None and wanted > 1:
            raise MemoryTrackingError(f"this step cannot be divided: {refusal}")
        most = 1 if refusal else batch.samples or _MANY
        state = StepState(self._known_modules())
        parts, most = self._ranks.begin(max(1, wanted), most)
        failed: list[int] | None = None
        while True:
            try:
                loss = self._attempt(batch, parts)
                break
            except Exception as error:
                failed = self._stop(error, state, parts < most, refusal)
            parts, most = self._ranks.begin(2 * parts, most)
        if failed is not None:
            self.largest_part = max(1, math.ceil(batch.samples / parts))
            if not failed or dist.get_rank() == 0:
                warnings.warn(_describe(batch.samples, parts, failed), RuntimeWarning, stacklevel=2)
        return loss

    def _attempt(self, batch: Batch, parts: int) -> Tensor:
        """Compute all parts on all ranks, or raise an error for `_stop`."""
        with self._ranks.guard():
            loss = self._compute(batch, parts)
        self._ranks.end()
        if self._has_failed:
            self._ranks.let_gradients_order_buckets()
        self._has_failed = False
        return loss

    def _stop(
        self, error: Exception, state: StepState, is_divisible: bool, refusal: str | None
    ) -> list[int]:
        """Restore this process after a failed attempt, and return the ranks out of memory.

        Raises an error if the step cannot be divided further.
        """
        self._has_failed = True
        try:
            failed = self._ranks.stop(error)
        except Exception:
            self._ranks.undo_failed_step()  # the program may continue with another step
            raise
        release_step(error)
        try:
            self._ranks.undo_failed_step()
            state.restore()
        except Exception:
            if is_divisible:
                self._ranks.abandon()
            raise
        if is_divisible:
            return failed
        reason = refusal or "its parts have one sample each on at least one rank"
        if is_out_of_memory(error):
            add_note(error, f"anyrig.memory.survive could not divide the step further: {reason}")
            raise error
        raise OtherRankError(
            f"{name_ranks(failed)} ran out of memory, and the step cannot be divided further: "
            f"{reason}"
        ) from None

    def _compute(self, batch: Batch, parts: int) -> Tensor:
        division = divide_evenly(batch.samples, parts)
        weights, own_weights = self._weigh(batch, division)
        total: Tensor | None = None
        for place, weight, own_weight in zip(division, weights, own_weights, strict=True):
            if not weight:  # the mean over zero items is NaN, and NaN times zero is NaN
                continue
            args, kwargs = batch.part(*place)
            loss = self._loss_of(*args, **kwargs)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise MemoryTrackingError(
                    f"the step returned {_name(loss)}; return the loss of the given samples, as a "
                    "tensor with one number"
                )
            shown = loss.detach() if own_weight == 1 else loss.detach() * own_weight
            self._backward(loss if weight == 1 else loss * weight)
            total = shown if total is None else total + shown
            del loss, args, kwargs  # the graph, before the next part begins
        assert total is not None
        return total

    def _weigh(
        self, batch: Batch, division: list[tuple[int, int]]
    ) -> tuple[list[float], list[float]]:
        """Return the weights of the parts' losses for the gradients, and for the returned loss.

        The weights differ if gradients are averaged over the samples of all ranks, but the returned
        loss is that of this rank's samples.
        """
        if not self._is_mean or len(division) == 1:
            return [1.0] * len(division), [1.0] * len(division)
        counts = [float(size) for _, size in division]
        if self._count is not None:
            for index, place in enumerate(division):
                args, kwargs = batch.part(*place)
                counts[index] = float(self._count(*args, **kwargs))
        if not isinstance(self._ranks, Ranks):
            return _shares(counts), _shares(counts)
        if any(counts) and not all(counts):
            raise MemoryTrackingError(
                f"count= returned {counts} for the parts of this rank's batch. A part without "
                "counted items has no mean, and all ranks compute a part together: shuffle the "
                "samples, or use a smaller batch"
            )
        if not self._averages_samples:
            return _shares(counts), _shares(counts)
        of_all = _shares(self._ranks.add(counts))
        return of_all, of_all if self._has_global_loss else _shares(counts)

    def _refusal(self, batch: Batch) -> str | None:
        """Return why a step cannot be divided, and what to do; None if it can be."""
        if not self._batch_norm_in_parts:
            for module in self._known_modules():
                mixes = isinstance(module, _BatchNorm)
                if mixes and (module.training or module.running_mean is None):
                    return (
                        f"{type(module).__name__} normalizes by the statistics of its batch, so "
                        "parts would give other gradients; pass batch_norm_in_parts=True, or use "
                        "layers such as GroupNorm"
                    )
        return batch.refusal()

    def _known_modules(self) -> Iterator[nn.Module]:
        for reference in self._modules:
            module = reference()
            if module is not None:
                yield module


def _shares(counts: Sequence[float]) -> list[float]:
    total = math.fsum(counts)
    return [count / total if total else 1 / len(counts) for count in counts]


def _describe(samples: int, parts: int, failed: Sequence[int]) -> str:
    where = f" on {name_ranks(failed)}" if failed else ""
    size = math.ceil(samples / parts)
    return (
        f"a step of {samples} samples ran out of memory{where} and was computed again in {parts} "
        f"parts of at most {size}. The next steps have parts of at most {size} samples, too"
    )


def _name(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
