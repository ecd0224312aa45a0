"""Batches on their way to a device while the one before is computed on.

::

    caller's thread    next(loader) k+2 │ wait for copy k │ compute k …        (its current stream)
    worker thread           pin k+1, queue its copy │ pin k+2, queue its copy  (the copy stream)
                                                    ▲
                        the current stream waits for the event behind copy k, not the host

The loader runs in the caller's thread, so that it draws random numbers in a fixed order and sees
the caller's thread-local state. The worker takes only what no thread-local state can change:
dense CPU tensors outside any graph, and objects that know about streams (`to` and
`record_stream`). Whatever else a batch holds is moved in the caller's thread when it is handed
over, in the caller's modes and on its current stream.
"""

from __future__ import annotations

import concurrent.futures
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from .containers import has_method
from .move import Mover, move_by_own_method
from .pin import is_plain_host_tensor, pinning_helps
from .streams import using
from .tree import Path, map_leaves

T = TypeVar("T")


@dataclass(frozen=True)
class _Copies:
    """What the worker did with one batch."""

    batch: Any
    ahead: tuple[Any, ...]  # each has a method `record_stream`
    complete: bool  # False if something is left for the caller's thread
    event: torch.Event  # has happened when the copies have


class CopiesAhead(Iterator[T], Generic[T]):
    """An iterator over batches on a device that keeps `depth` more of them on the way.

    Its thread ends with the last batch, with `close`, and when the iterator is dropped, which is
    what a ``for`` loop does that is left by ``break``, ``return`` or an exception.
    """

    def __init__(
        self,
        loader: Iterable[T],
        device: torch.device,
        stream: torch.Stream,
        depth: int,
        timeout_seconds: float,
    ) -> None:
        self._batches = iter(loader)
        self._device = device
        self._stream = stream
        self._depth = depth
        self._timeout_seconds = timeout_seconds
        self._pending: deque[Future[_Copies] | Exception] = deque()
        self._drained = False
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="anyrig-prefetch")
        # It may run in any thread, the worker included, so it must not wait for the worker.
        weakref.finalize(self, self._worker.shutdown, wait=False, cancel_futures=True)

    def __next__(self) -> T:
        """Return the next batch.

        Raises:
            TimeoutError: it was not pinned and queued for copying within the time limit.
            Exception: whatever the loader raised at this place, as itself.
        """
        self._fill()
        if not self._pending:
            self.close()
            raise StopIteration
        first = self._pending[0]
        if isinstance(first, Exception):
            self._pending.popleft()
            raise first
        return self._hand_over(self._take(first))

    def close(self) -> None:
        """Drop the batches on the way and end the thread."""
        self._drained = True
        self._pending.clear()
        self._batches = iter(())
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _fill(self) -> None:
        # An error of the loader ends the look ahead until the caller has met it.
        while (
            not self._drained
            and len(self._pending) <= self._depth
            and not (self._pending and isinstance(self._pending[-1], Exception))
        ):
            try:
                batch = next(self._batches)
            except StopIteration:
                self._drained = True
            except Exception as error:
                self._pending.append(error)
            else:
                self._pending.append(
                    self._worker.submit(_copy_ahead, batch, self._device, self._stream)
                )

    def _take(self, first: Future[_Copies]) -> _Copies:
        # It leaves the queue only when it is done, so that Ctrl-C in this wait loses nothing.
        if not concurrent.futures.wait([first], self._timeout_seconds).done:
            raise TimeoutError(
                f"a batch was not on its way to {self._device} after {self._timeout_seconds:g} s; "
                "the device may hang, or the host may have no memory left to pin. "
                "Allow more with prefetch(…, timeout_seconds=…)"
            )
        self._pending.popleft()
        return first.result()

    def _hand_over(self, copies: _Copies) -> T:
        consumer = torch.accelerator.current_stream(self._device)
        consumer.wait_event(copies.event)
        for copied in copies.ahead:
            # Its memory belongs to the copy stream's pool; it must not be reused there before the
            # caller's kernels, which run on another stream, have read it.
            copied.record_stream(consumer)
        batch: T = copies.batch
        if not copies.complete:
            batch = Mover(self._device, non_blocking=True).map(batch)
        return batch


def _copy_ahead(batch: Any, device: torch.device, stream: torch.Stream) -> _Copies:
    ahead: list[Any] = []
    complete = True
    pins = pinning_helps(device.type)

    def copy(leaf: Any, path: Path) -> Any:
        nonlocal complete
        if isinstance(leaf, torch.Tensor) and is_plain_host_tensor(leaf):
            source = leaf.pin_memory() if pins else leaf  # itself if it is pinned already
            copied = source.to(device, non_blocking=True)
        elif _follows_streams(leaf):
            copied = move_by_own_method(leaf, device, non_blocking=True)
        else:
            complete = False
            return leaf
        ahead.append(copied)
        return copied

    with using(stream):  # which makes its device the thread's current one as well
        moved = map_leaves(batch, copy)
        event = stream.record_event()
    return _Copies(moved, tuple(ahead), complete, event)


def _follows_streams(leaf: Any) -> bool:
    """Say whether an object takes part in stream order, as TensorDict and PyG's Data do."""
    return (
        not isinstance(leaf, torch.Tensor)
        and has_method(leaf, "to")
        and has_method(leaf, "record_stream")
    )
