"""Asynchronous copies to the host that cannot be read before they are done."""

from __future__ import annotations

import time
from typing import Any, Generic, TypeVar

import torch

from ..errors import MoveError
from .containers import has_method
from .pin import pinning_helps
from .streams import copy_stream, using
from .tree import Path, format_path, map_leaves
from .unreachable import refuse_unreachable

T = TypeVar("T")

_LONGEST_PAUSE_SECONDS = 1e-3


class HostCopy(Generic[T]):
    """An asynchronous copy of a tree to the host. Reading `value` waits for it."""

    __slots__ = ("_events", "_tree")

    def __init__(self, tree: T, events: tuple[torch.Event, ...]) -> None:
        self._tree = tree
        self._events = events

    @property
    def value(self) -> T:
        """The tree on the CPU, the same object each time. The first access waits for the copy."""
        return self.wait()

    def wait(self, timeout_seconds: float | None = None) -> T:
        """Wait for the copy and return the tree on the CPU.

        Args:
            timeout_seconds: the longest wait, in seconds; None for no limit.

        Raises:
            TimeoutError: the copy was not done by then. `wait` may be called again.
        """
        if timeout_seconds is None:
            for event in self._events:
                event.synchronize()
        elif not self._wait_until(time.monotonic() + timeout_seconds):
            raise TimeoutError(
                f"a copy to the host was not done after {timeout_seconds:g} s; the device has not "
                "finished the work that was queued before the copy. Wait again, or longer"
            )
        self._events = ()
        return self._tree

    def done(self) -> bool:
        """Return whether the copy is done, without waiting."""
        return all(event.query() for event in self._events)

    def _wait_until(self, deadline: float) -> bool:
        # Events have no wait with a time limit. Polling at growing intervals costs the host little
        # and delays the caller by a millisecond at most.
        pause_seconds = 1e-5
        while not self.done():
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
        return True

    def __repr__(self) -> str:
        return f"HostCopy({'done' if self.done() else 'pending'})"


def copy_to_host(tree: T, *, beside: bool = False) -> HostCopy[T]:
    """Start to copy `tree` to the host, and return without waiting.

    The copy is a snapshot: later writes to the tensors, such as an optimizer's step, do not change
    it. It is detached from the graph. On the CPU it is a clone, made at once. Devices without
    asynchronous copies (mps) are synchronized here.

    Args:
        tree: tensors in containers, as for `move`, for example a ``state_dict()``. Other values are
            kept, not copied.
        beside: False copies on the tensors' current stream: later kernels of that stream wait for
            the copy, and no device memory is needed. True clones the tensors on the device and
            copies the clones on a separate stream while later kernels run: the device needs memory
            for the clones until the copy is done.

    Raises:
        MoveError: the tree holds a module, another object with a method `to`, or tensors that
            cannot be reached.
        torch.OutOfMemoryError: the device has no memory for the clones.
    """
    copier = _HostCopier(beside)
    copied = map_leaves(tree, copier.copy)
    return HostCopy(copied, copier.record_events())


class _HostCopier:
    """Copies leaves to the host and records the streams of the copies."""

    def __init__(self, beside: bool) -> None:
        self._beside = beside
        self._streams: dict[torch.device, torch.Stream] = {}

    def copy(self, leaf: Any, path: Path) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self._copy_tensor(leaf.detach())
        if has_method(leaf, "to"):
            raise MoveError(
                f"cannot copy {type(leaf).__name__} at {format_path(path)} to the host: its method "
                "`to` may move the original. Pass its tensors; for a module, its state_dict()"
            )
        refuse_unreachable(leaf, path)
        return leaf

    def record_events(self) -> tuple[torch.Event, ...]:
        """Return one event for each stream, which follows the copies on that stream."""
        return tuple(stream.record_event() for stream in self._streams.values())

    def _copy_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu":
            return tensor.clone()
        if not _copies_by_itself(tensor):
            return tensor.to("cpu")
        host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        current = torch.accelerator.current_stream(tensor.device)
        side = copy_stream(tensor.device, "to host") if self._beside else None
        if side is None:
            self._streams[tensor.device] = current
            return host.copy_(tensor, non_blocking=True)
        self._streams[tensor.device] = side
        # Without the clone, a kernel queued later could write to the source while it is read.
        clone = tensor.clone()
        side.wait_event(current.record_event())
        with using(side):
            host.copy_(clone, non_blocking=True)
        # The clone is freed here, but belongs to the current stream's pool.
        clone.record_stream(side)
        return host


def _copies_by_itself(tensor: torch.Tensor) -> bool:
    """Return whether a device can copy this tensor to pinned memory asynchronously."""
    return (
        pinning_helps(tensor.device.type)
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    )
