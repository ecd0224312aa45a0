"""A loader whose batches arrive on the device, copied while the step before computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, cast

import torch

from ..devices.place import Place
from ..errors import MoveError
from .ahead import CopiesAhead
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

    On the CPU it is `loader` itself. Elsewhere it can be iterated over as often as `loader`, has
    its length if it has one, and gives and takes its attributes. Batches are pinned (unless they
    are) and copied on a stream of their own by one thread; `next(loader)` runs in the caller's
    thread, up to ``depth + 1`` batches early. An exception of the loader comes after the batches
    before it, unchanged. Batches without tensors pass as they are.

    A loader that fills one buffer again and again must yield copies of it.

    Args:
        loader: anything that can be iterated over, such as a `torch.utils.data.DataLoader`.
        rig: a rig, whose lead is taken, or a device.
        depth: how many batches are on the way beside the one in use, at least 1. Up to
            ``depth + 2`` batches lie on the device at a time.
        timeout_seconds: how long to wait for a batch to be pinned and its copy queued.

    Raises:
        MoveError: `loader` cannot be iterated over.
        ValueError: `depth` is below 1.
    """
    if depth < 1:
        raise ValueError(
            f"depth is how many batches are on the way, at least 1; got {depth}. "
            "Leave prefetch() out to have none"
        )
    if not hasattr(type(loader), "__iter__") and not hasattr(type(loader), "__getitem__"):
        raise MoveError(
            f"cannot prefetch from {type(loader).__name__}: it cannot be iterated over. "
            "Pass the loader that yields the batches"
        )
    device = resolve_device(rig)
    if device.type == "cpu":
        return loader
    cls = SizedPrefetchedLoader if hasattr(type(loader), "__len__") else PrefetchedLoader
    return cast("LoaderT", cls(loader, device, depth, timeout_seconds))


class PrefetchedLoader:
    """Stands before a loader; what it does not have itself, the loader has."""

    __slots__ = ("_depth", "_device", "_loader", "_timeout_seconds")

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
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    def __iter__(self) -> Iterator[Any]:
        stream = copy_stream(self._device, "to device")
        if stream is None:
            return self._without_streams()
        return CopiesAhead(self._loader, self._device, stream, self._depth, self._timeout_seconds)

    def _without_streams(self) -> Iterator[Any]:
        for batch in self._loader:
            yield Mover(self._device, non_blocking=True).map(batch)

    def __getattr__(self, name: str) -> Any:
        if name == "__deepcopy__":  # that of the loader would copy the loader alone
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # By default a copy is given its attributes one by one, and hands them to its loader.
        return type(self), (self._loader, self._device, self._depth, self._timeout_seconds)

    def __repr__(self) -> str:
        return f"prefetch({self._loader!r}, {str(self._device)!r}, depth={self._depth})"


class SizedPrefetchedLoader(PrefetchedLoader):
    """A prefetched loader with a length. `len` asks the class, so it takes a class of its own."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]
