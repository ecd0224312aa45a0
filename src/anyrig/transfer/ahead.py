"""Copies of batches to a device that overlap with the computation on the previous batch.

::

    caller's thread    next(loader) k+2 │ wait for copy k │ compute k …        (its current stream)
    worker thread           pin k+1, queue its copy │ pin k+2, queue its copy  (the copy stream)
                                                    ▲
                        the current stream, not the host, waits for the event behind copy k

The loader runs in the caller's thread, so that it draws random numbers in a fixed order and sees
the caller's thread-local state. The worker copies only objects that thread-local state does not
affect: dense CPU tensors outside any graph, and objects with `to` and `record_stream`. All other
objects are moved in the caller's thread when the batch is returned, in the caller's modes and on
its current stream.
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
from .pin import is_plain_host_tensor, pin_tensor, pinning_helps
from .streams import using
from .tree import Path, map_leaves

T = TypeVar("T")


@dataclass(frozen=True)
class _Copies:
    """One batch as the worker has copied it."""

    batch: Any
    ahead: tuple[Any, ...]  # each has a method `record_stream`
    complete: bool  # False if the caller's thread has more to move
    event: torch.Event  # follows the copies


@dataclass
class Received:
    """The state of a loader after the batch that the user has received.

    The loader itself is ahead of this state by the batches that are copied ahead.

    Attributes:
        state: what the loader's ``state_dict()`` returned after that batch; None if no batch was
            received, or the iteration is over.
    """

    state: Any = None


class CopiesAhead(Iterator[T], Generic[T]):
    """An iterator over batches on a device that copies `depth` batches ahead.

    Its thread ends after the last batch, on `close`, and when the iterator is deleted, as a ``for``
    loop does when ``break``, ``return`` or an exception leaves it.
    """

    def __init__(
        self,
        loader: Iterable[T],
        device: torch.device,
        stream: torch.Stream,
        depth: int,
        timeout_seconds: float,
        received: Received | None = None,
    ) -> None:
        self._received = received
        self._read_state = None if received is None else getattr(loader, "state_dict", None)
        # The loader's state after each pending batch.
        self._states: deque[Any] = deque()
        self._batches = iter(loader)
        self._device = device
        self._stream = stream
        self._depth = depth
        self._timeout_seconds = timeout_seconds
        self._pending: deque[Future[_Copies] | Exception] = deque()
        self._drained = False
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="anyrig-prefetch")
        # The finalizer may run in any thread, including the worker, so it must not wait for it.
        weakref.finalize(self, self._worker.shutdown, wait=False, cancel_futures=True)

    def __next__(self) -> T:
        """Return the next batch.

        Raises:
            TimeoutError: the batch was not pinned and queued for copying within the time limit.
            Exception: the exception that the loader raised for this batch, unchanged.
        """
        self._fill()
        if not self._pending:
            self.close()
            if self._received is not None:
                self._received.state = None
            raise StopIteration
        first = self._pending[0]
        if isinstance(first, Exception):
            self._pending.popleft()
            raise first
        batch = self._hand_over(self._take(first))
        if self._received is not None and self._states:
            self._received.state = self._states.popleft()
        return batch

    def close(self) -> None:
        """Discard the batches that were copied ahead and end the thread."""
        self._drained = True
        self._pending.clear()
        self._batches = iter(())
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _fill(self) -> None:
        # After an error of the loader, copy nothing more until the caller has received the error.
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
                if callable(self._read_state):
                    self._states.append(self._read_state())

    def _take(self, first: Future[_Copies]) -> _Copies:
        # The batch leaves the queue only when done, so that Ctrl-C in this wait loses nothing.
        if not concurrent.futures.wait([first], self._timeout_seconds).done:
            raise TimeoutError(
                f"a batch was not queued for copying to {self._device} after "
                f"{self._timeout_seconds:g} s; "
                "the device may hang, or the host may have no memory left to pin. "
                "Allow more with prefetch(…, timeout_seconds=…)"
            )
        self._pending.popleft()
        return first.result()

    def _hand_over(self, copies: _Copies) -> T:
        consumer = torch.accelerator.current_stream(self._device)
        consumer.wait_event(copies.event)
        for copied in copies.ahead:
            # The memory belongs to the copy stream's pool. It must not be reused there before the
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
            source = pin_tensor(leaf) if pins else leaf  # returns a pinned tensor itself
            copied = source.to(device, non_blocking=True)
        elif _follows_streams(leaf):
            copied = move_by_own_method(leaf, device, non_blocking=True)
        else:
            complete = False
            return leaf
        ahead.append(copied)
        return copied

    with using(stream):  # also makes its device the current one of this thread
        moved = map_leaves(batch, copy)
        event = stream.record_event()
    return _Copies(moved, tuple(ahead), complete, event)


def _follows_streams(leaf: Any) -> bool:
    """Return whether an object has `record_stream`, as TensorDict and PyG's Data do."""
    return (
        not isinstance(leaf, torch.Tensor)
        and has_method(leaf, "to")
        and has_method(leaf, "record_stream")
    )
