"""Let ranks agree before each collective, so that no rank waits for a rank that has failed.

::

    rank 0    forward ─ all-gather ─ … ─ all-gather? ── no: rank 1 is out of memory ──▶ stop
                            │                 │
    rank 1    forward ─ all-gather ─ out of memory ─────────────────────────────────▶ stop

A collective never ends if a rank does not take part. So before each collective of a step, the ranks
exchange over the CPU which point they have reached, and a rank that fails reports its failure in
this exchange. A collective begins only if every rank has reached it. Hence all ranks stop before
the same collective, and a collective that has begun on one rank has begun on all.

The exchange happens within PyTorch's operators for collectives, which DDP, FSDP2, synchronized
batch norm and `torch.distributed` all call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import IntEnum
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..errors import MemoryTrackingError, OtherRankError, RankMismatchError
from .failed_step import is_out_of_memory
from .torch_versions import newer_collectives

_COLLECTIVES = (
    *("allreduce_", "allreduce_coalesced_", "reduce_", "broadcast_", "barrier", "gather_"),
    *("scatter_", "allgather_", "_allgather_base_", "allgather_coalesced_"),
    *("allgather_into_tensor_coalesced_", "reduce_scatter_", "_reduce_scatter_base_"),
    *("reduce_scatter_tensor_coalesced_", "alltoall_", "alltoall_base_", "monitored_barrier_"),
)
_POINT_TO_POINT = ("send", "recv_", "recv_any_source_")
_NONE = 2**62


class Point(IntEnum):
    """The point of a step that a rank has reached."""

    BEGIN = 0
    COLLECTIVE = 1
    END = 2
    OUT_OF_MEMORY = 3
    OTHER_ERROR = 4


class Report(NamedTuple):
    """What a rank reports. The numbers are the arguments of `Ranks.begin`."""

    point: Point
    wanted: int = 0
    most: int = 0


class Stopped(Exception):  # noqa: N818 - it reports no error of this rank
    """Another rank has failed, so this rank stops before its next collective."""


def join_ranks() -> Alone | Ranks:
    """Return the object that lets all ranks end their steps together.

    Every rank must call this function at the same point.

    Raises:
        MemoryTrackingError: this process is one of several ranks, and its models cannot recover
            from a failed step.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return Alone()
    from .wrapped_models import check_wrapped_models

    check_wrapped_models()
    return Ranks()


class Alone:
    """A process without other ranks, with the methods of `Ranks`."""

    def begin(self, wanted: int, most: int) -> tuple[int, int]:
        """See `Ranks.begin`."""
        return min(wanted, most), most

    def add(self, numbers: Sequence[float]) -> list[float]:
        """Return the numbers."""
        return [*numbers]

    def least(self, number: int | None) -> int | None:
        """Return the number."""
        return number

    def guard(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def end(self) -> None:
        """Do nothing."""

    def abandon(self) -> None:
        """Do nothing."""

    def stop(self, error: Exception) -> list[int]:
        """Raise `error` unless it says that a device is out of memory."""
        if not is_out_of_memory(error):
            raise error
        return []

    def undo_failed_step(self) -> None:
        """Do nothing."""

    def let_gradients_order_buckets(self) -> None:
        """Do nothing."""


class Ranks:
    """The ranks of the default process group, which compute steps together.

    Every rank must create this object at the same point.

    Attributes:
        reports: what stopped the current step, by rank; None while all ranks compute it.
    """

    def __init__(self) -> None:
        if not dist.is_gloo_available():
            raise MemoryTrackingError(
                "ranks agree over gloo, which this build of PyTorch does not have; compute steps "
                "in one process, or use a build with gloo"
            )
        self._group = dist.new_group(backend="gloo")
        self._size = dist.get_world_size()
        self._lock = threading.Lock()  # backward passes run in threads of their own
        self.reports: list[Report] | None = None

    def exchange(self, report: Report) -> list[Report]:
        """Return the reports of all ranks, in order of ranks."""
        own = torch.tensor(report, dtype=torch.int64, device="cpu")
        answers = own.new_empty(self._size * len(own))
        # Below autograd, where `guard` does not intercept the collective.
        with torch._C._AutoDispatchBelowAutograd():
            dist.all_to_all_single(answers, own.repeat(self._size), group=self._group)
        rows = answers.view(self._size, len(own)).tolist()
        return [Report(Point(point), wanted, most) for point, wanted, most in rows]

    def begin(self, wanted: int, most: int) -> tuple[int, int]:
        """Begin a step on all ranks.

        Args:
            wanted: the least number of parts that this rank wants.
            most: the largest number of parts into which this rank can divide its batch.

        Returns:
            The number of parts, and the largest number possible: the same on every rank.

        Raises:
            OtherRankError: another rank has failed since the last step.
        """
        self.reports = None
        reports = self.exchange(Report(Point.BEGIN, wanted, most))
        if any(report.point is not Point.BEGIN for report in reports):
            self.reports = reports
            raise self._other_rank_error()
        most = min(report.most for report in reports)
        return min(max(report.wanted for report in reports), most), most

    def abandon(self) -> None:
        """Make `begin` raise OtherRankError on the other ranks: this rank cannot begin again."""
        self.exchange(Report(Point.OTHER_ERROR))

    def end(self) -> None:
        """End a step on all ranks.

        Raises:
            Stopped: another rank has failed.
        """
        self._meet(Point.END)

    def add(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums of all ranks' numbers. Within `guard`, this is a collective, too."""
        total = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        dist.all_reduce(total, group=self._group)
        return total.tolist()

    def least(self, number: int | None) -> int | None:
        """Return the smallest of all ranks' numbers, ignoring None."""
        reports = self.exchange(Report(Point.BEGIN, _NONE if number is None else number))
        least = min(report.wanted for report in reports)
        return None if least == _NONE else least

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Let the ranks agree before each collective in this block.

        Within the block, a collective raises Stopped if another rank has failed.
        """
        # A kernel at the key "Autograd" runs before the backend's kernel. `_destroy` is private;
        # without it, the kernel would stay until the garbage is collected.
        library: Any = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        try:
            for name in (*_COLLECTIVES, *newer_collectives()):
                library.impl(name, self._guarded(getattr(torch.ops.c10d, name)), "Autograd")
            for name in _POINT_TO_POINT:
                library.impl(name, _refuse_point_to_point, "Autograd")
            yield
        finally:
            library._destroy()

    def _guarded(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                self._meet(Point.COLLECTIVE)
                return collective(*args, **kwargs)

        return run

    def _meet(self, point: Point) -> None:
        with self._lock:
            if self.reports is None:
                reports = self.exchange(Report(point))
                if all(report.point is point for report in reports):
                    return
                self.reports = reports
        raise Stopped

    def stop(self, error: Exception) -> list[int]:
        """Report that this rank's step ended with `error`.

        Args:
            error: this rank's own error, or Stopped.

        Returns:
            The ranks that ran out of memory.

        Raises:
            Exception: `error` itself, if it is neither Stopped nor an out-of-memory error.
            OtherRankError: another rank has failed for another reason.
            RankMismatchError: the ranks reached different numbers of collectives.
        """
        if self.reports is None:
            out_of_memory = is_out_of_memory(error)
            point = Point.OUT_OF_MEMORY if out_of_memory else Point.OTHER_ERROR
            self.reports = self.exchange(Report(point))
        if self.reports[dist.get_rank()].point is Point.OTHER_ERROR:
            raise error
        if self._at(Point.OTHER_ERROR):
            raise self._other_rank_error() from None
        failed = self._at(Point.OUT_OF_MEMORY)
        if not failed:
            raise RankMismatchError(
                f"{name_ranks(self._at(Point.END))} ended the step, while "
                f"{name_ranks(self._at(Point.COLLECTIVE))} called a collective. Let all ranks "
                "run the same collectives within a step"
            ) from None
        return failed

    def undo_failed_step(self) -> None:
        """Make the models of this rank ready for another step; every rank must call this.

        Raises:
            MemoryTrackingError: a model holds gradients of earlier steps that are not yet reduced.
        """
        from .wrapped_models import undo_failed_step

        undo_failed_step()

    def let_gradients_order_buckets(self) -> None:
        """Let DDP order its buckets as gradients arrive, as before `undo_failed_step`."""
        from .wrapped_models import let_gradients_order_buckets

        let_gradients_order_buckets()

    def _at(self, point: Point) -> list[int]:
        return [rank for rank, each in enumerate(self.reports or ()) if each.point is point]

    def _other_rank_error(self) -> OtherRankError:
        failed = self._at(Point.OTHER_ERROR) or self._at(Point.OUT_OF_MEMORY)
        return OtherRankError(
            f"rank {dist.get_rank()} stopped this step, because {name_ranks(failed)} failed; see "
            "the error of that rank"
        )


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ``"rank 1"`` or ``"ranks 0, 1"``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _refuse_point_to_point(*args: Any, **kwargs: Any) -> Any:
    raise MemoryTrackingError(
        "this step sends tensors from rank to rank, as pipelines do, and a rank that waits for a "
        "tensor cannot be stopped; leave out survive() or fit_batch_size()"
    )
