"""A loader whose batches are copied to the device while the previous step computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar, cast

import torch

from ..devices.place import Place
from ..errors import MoveError
from .ahead import CopiesAhead, Received
from .move import Mover, resolve_device
from .streams import copy_stream

LoaderT = TypeVar("LoaderT", bound=Iterable[Any])


def prefetch(
    loader: LoaderT,
    rig: Place,
    depth: int = 2,
    *,
    timeout_seconds: float = 300.0,
) -> LoaderT:
    """Return a loader whose batches are on the lead of `rig`, copied ahead of their use.

    On the CPU, return `loader` itself. The returned loader can be iterated as often as `loader`,
    has its length if it has one, and reads and writes its attributes. One thread pins the batches
    and copies them on a separate stream; `next(loader)` runs in the caller's thread, up to
    ``depth + 1`` batches early. An exception of the loader is raised unchanged, after the batches
    that precede it. Batches without tensors are passed through.

    A loader that reuses one buffer must yield copies of it.

    Args:
        loader: any iterable, such as a `torch.utils.data.DataLoader`.
        rig: a rig, whose lead is used, or a device.
        depth: the number of batches to copy ahead of the one in use, at least 1. At most
            ``depth + 2`` batches are on the device at a time.
        timeout_seconds: the longest wait for a batch to be pinned and its copy queued.

    Raises:
        MoveError: `loader` is not iterable.
        ValueError: `depth` is below 1.
    """
    if depth < 1:
        raise ValueError(
            f"depth is the number of batches to copy ahead, at least 1; got {depth}. "
            "To copy none ahead, do not call prefetch()"
        )
    if not hasattr(type(loader), "__iter__") and not hasattr(type(loader), "__getitem__"):
        raise MoveError(
            f"cannot prefetch from {type(loader).__name__}: it is not iterable. "
            "Pass the loader that yields the batches"
        )
    device = resolve_device(rig)
    if device.type == "cpu":
        return loader
    cls = SizedPrefetchedLoader if hasattr(type(loader), "__len__") else PrefetchedLoader
    return cast("LoaderT", cls(loader, device, depth, timeout_seconds))


class PrefetchedLoader:
    """A proxy for a loader: all other attributes are the loader's."""

    __slots__ = ("_depth", "_device", "_loader", "_received", "_timeout_seconds")

    _received: Received
    _loader: Iterable[Any]
    _device: torch.device
    _depth: int
    _timeout_seconds: float

    def __init__(
        self, loader: Iterable[Any], device: torch.device, depth: int, timeout_seconds: float
    ) -> None:
        own = {
            "_loader": loader,
            "_device": device,
            "_depth": depth,
            "_timeout_seconds": timeout_seconds,
            "_received": Received(),
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    def __iter__(self) -> Iterator[Any]:
        stream = copy_stream(self._device, "to device")
        if stream is None:
            return self._without_streams()
        received = Received()
        object.__setattr__(self, "_received", received)
        return CopiesAhead(
            self._loader, self._device, stream, self._depth, self._timeout_seconds, received
        )

    def _without_streams(self) -> Iterator[Any]:
        for batch in self._loader:
            yield Mover(self._device, non_blocking=True).map(batch)

    def __getattr__(self, name: str) -> Any:
        if name == "__deepcopy__":  # the loader's method would copy only the loader
            raise AttributeError(name)
        found = getattr(self._loader, name)
        if name == "state_dict":
            return lambda: self._received.state or found()
        if name in ("load_state_dict", "set_epoch"):
            return partial(self._set_position, found)
        return found

    def _set_position(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        object.__setattr__(self, "_received", Received())
        return call(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, copying sets each attribute on the copy, which would set it on the loader.
        return type(self), (self._loader, self._device, self._depth, self._timeout_seconds)

    def __repr__(self) -> str:
        return f"prefetch({self._loader!r}, {str(self._device)!r}, depth={self._depth})"


class SizedPrefetchedLoader(PrefetchedLoader):
    """A prefetched loader with a length. `len` looks at the class, so this is a separate class."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]
