"""Copies to the host that run while the host goes on, and cannot be read before they are done."""

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
    """The copy of a tree on the host, perhaps still being written. `value` waits for it."""

    __slots__ = ("_events", "_tree")

    def __init__(self, tree: T, events: tuple[torch.Event, ...]) -> None:
        self._tree = tree
        self._events = events

    @property
    def value(self) -> T:
        """The tree on the CPU. Waits until it is written; afterwards the same object each time."""
        return self.wait()

    def wait(self, timeout_seconds: float | None = None) -> T:
        """Return the tree on the CPU as soon as it is written.

        Args:
            timeout_seconds: how long to wait at most, in seconds; None waits as long as it takes.

        Raises:
            TimeoutError: it was not written by then. It may be waited for again.
        """
        if timeout_seconds is None:
            for event in self._events:
                event.synchronize()
        elif not self._wait_until(time.monotonic() + timeout_seconds):
            raise TimeoutError(
                f"a copy to the host was not done after {timeout_seconds:g} s; the device has not "
                "finished the work that was queued before it. Wait again, or longer"
            )
        self._events = ()
        return self._tree

    def done(self) -> bool:
        """Say whether the value is there, without waiting."""
        return all(event.query() for event in self._events)

    def _wait_until(self, deadline: float) -> bool:
        # An event cannot be waited for with a limit; asking more and more seldom costs the host
        # little and the caller at most a millisecond.
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
    """Start to copy `tree` as it is now to the host, and return without waiting.

    The copy is a snapshot: what the program writes into the tensors afterwards, an optimizer's
    step for instance, is not in it. It is detached from the graph, on the CPU as well, where it is
    a clone made at once. Devices that cannot copy by themselves (mps) are waited for here.

    Args:
        tree: tensors in containers, as `move` takes them, a ``state_dict()`` for instance. What is
            no tensor is kept as it is, not copied.
        beside: False puts the copy in the tensors' current stream: later kernels of that stream
            wait for it, and no device memory is needed. True clones the tensors on the device and
            copies the clones on a stream of its own while later kernels run: the device needs room
            for the clones until the copy is done.

    Raises:
        MoveError: the tree holds a module or another object that would have to move itself, or
            carries tensors out of reach.
        torch.OutOfMemoryError: there is no room for the clones.
    """
    copier = _HostCopier(beside)
    copied = map_leaves(tree, copier.copy)
    return HostCopy(copied, copier.record_events())


class _HostCopier:
    """Copies leaves to the host and knows which streams the copies are on."""

    def __init__(self, beside: bool) -> None:
        self._beside = beside
        self._streams: dict[torch.device, torch.Stream] = {}

    def copy(self, leaf: Any, path: Path) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self._copy_tensor(leaf.detach())
        if has_method(leaf, "to"):
            raise MoveError(
                f"cannot copy {type(leaf).__name__} at {format_path(path)} to the host: its method "
                "`to` may move the original. Pass its tensors, of a module its state_dict()"
            )
        refuse_unreachable(leaf, path)
        return leaf

    def record_events(self) -> tuple[torch.Event, ...]:
        """Return an event for each stream that has happened when the copies on it have."""
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
        # Without the clone a kernel queued later could write into the source while it is read.
        clone = tensor.clone()
        side.wait_event(current.record_event())
        with using(side):
            host.copy_(clone, non_blocking=True)
        # The clone is freed here, but belongs to the current stream's pool.
        clone.record_stream(side)
        return host


def _copies_by_itself(tensor: torch.Tensor) -> bool:
    """Say whether a device can write this tensor to pinned memory on its own."""
    return (
        pinning_helps(tensor.device.type)
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    )
