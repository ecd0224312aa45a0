"""Save while training continues.

::

    training   step │ copy to host │ step   step   step │ wait │ copy │ step   step
    thread                         └─ write, hash, flush, rename ─┘    └─ write, …
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..processes.time_limit import limit_or_default
from .given_path import absolute_path
from .over_ranks import Ranks
from .prepared_save import PreparedSave, State, prepare_save
from .shards import whole_on_device

_SAVE = "a save in the background"


class BackgroundSaver:
    """Saves checkpoints of one series while training continues.

    ::

        with anyrig.checkpoint.BackgroundSaver("runs/a", keep=3) as saver:
            for step, (x, y) in enumerate(loader):
                ...
                if step % 1000 == 0:
                    saver.save(model=model, optimizer=optimizer, loader=loader, step=step)

    `save` returns when the state is copied to the host's memory. A thread then writes the copy: on
    rank 0, or on every rank if all write (see `sharded` of `anyrig.save`).

    The memory of the copy is kept for the next save. A save waits for the previous save. If a save
    has failed, the next call of a method raises its error on every rank; the series then has the
    earlier checkpoints. The end of the block, and the end of the process, wait for the last save.

    On several ranks, every rank must call each method.

    Args:
        path: the folder of the series; it is created if necessary.
        keep: as for `anyrig.save`.
        sharded: as for `anyrig.save`.
        timeout_seconds: how long to wait for other ranks and for a save to end; None for the
            launcher's ``--timeout``, else ten minutes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep: int | None = None,
        sharded: bool | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        self._path = absolute_path(path)
        self._keep, self._sharded = keep, sharded
        self._given_seconds = timeout_seconds
        self._copies = _HostCopies()
        self._writing: _Writing | None = None

    def save(
        self,
        *,
        model: torch.nn.Module | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        loader: Any = None,
        step: int | None = None,
        metric: float | None = None,
        best: str | None = None,
        **values: Any,
    ) -> None:
        """Copy the state of a training run to the host, and begin to save it; see `anyrig.save`.

        Raises:
            CheckpointError: this state cannot be saved, or the previous save has failed.
            OtherRankError: another rank failed in this call, or in the previous save.
            RankWaitError: another rank did not arrive in time.
        """
        self.wait()
        ranks = Ranks(_SAVE, self._given_seconds)
        state = State(model, optimizer, scheduler, scaler, loader, step, metric, best, values)
        prepared = prepare_save(
            ranks, self._path, self._keep, state, self._copies.copy, self._sharded
        )
        failed: BaseException | None = None
        self._copies.begin()
        try:
            # On every rank, because copying tensors in shards may need collectives.
            prepared.contents = {name: [*parts] for name, parts in prepared.contents.items()}
            self._copies.finish()
        except Exception as error:
            failed = error
            prepared.read_to_the_end()
        ranks.agree({}, failed)
        prepared.begin()
        self._writing = _Writing(prepared)

    def wait(self) -> Path | None:
        """Wait for the last save, and return its checkpoint's folder; None if there was none.

        Raises:
            CheckpointError: the save has failed, or has not ended in time.
            OtherRankError: the save has failed on another rank.
            RankWaitError: another rank did not arrive in time.
        """
        if self._writing is None:
            return None
        ranks = Ranks(_SAVE, self._given_seconds)
        writing = self._writing
        failed = writing.wait(ranks.timeout_seconds)
        if not writing.is_running:
            self._writing = None
        return Path(ranks.agree({}, failed, writing.folder)[0])

    def __enter__(self) -> BackgroundSaver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.wait()
        elif self._writing is not None:  # without the other ranks, which may not arrive
            failed = self._writing.wait(limit_or_default(self._given_seconds))
            if failed is not None and hasattr(error, "add_note"):
                error.add_note(f"The last checkpoint was not saved: {failed}")


class _Writing:
    """The thread that writes one checkpoint, or this rank's part of it.

    Waits are for an event: if an interrupt comes within `Thread.join`, Python takes a thread for
    ended that still runs (before 3.13), and ends the process while the thread writes.
    """

    def __init__(self, prepared: PreparedSave) -> None:
        self.folder = ""
        self._failed: BaseException | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if prepared.ranks.rank == 0 or prepared.parallel is not None:
            # Not a daemon: the end of the process waits for it.
            self._thread = threading.Thread(
                target=self._write, args=(prepared,), name="anyrig-save", daemon=False
            )
            self._thread.start()
            atexit.register(self._report)  # runs after the thread has ended

    @property
    def is_running(self) -> bool:
        return self._thread is not None and not self._ended.is_set()

    def wait(self, timeout_seconds: float) -> BaseException | None:
        """Wait until the checkpoint is written; return the error if it was not written."""
        if self._thread is not None:
            self._ended.wait(timeout_seconds)
        if self.is_running:
            return CheckpointError(
                f"{_SAVE} has not ended after {timeout_seconds:.0f} s, and continues. The disk may "
                "be slow or gone; allow more time with timeout_seconds="
            )
        atexit.unregister(self._report)
        return self._failed

    def _write(self, prepared: PreparedSave) -> None:
        try:
            self.folder = prepared.write()
        except BaseException as error:
            self._failed = error
        finally:
            self._ended.set()

    def _report(self) -> None:
        """Print a failure that no call has raised, at the end of the process."""
        if self._failed is not None:
            sys.stderr.write(f"anyrig: the last checkpoint was not saved: {self._failed}\n")


class _HostCopies:
    """Copies of tensors in the host's memory, which the next save reuses.

    Copies from a GPU go to pinned memory, without a wait for each copy.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._free: Iterator[Tensor] = iter(())
        self._devices: set[torch.device] = set()

    def begin(self) -> None:
        """Begin a save: all buffers are free."""
        self._free, self._buffers = iter(self._buffers), []
        self._devices = set()

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy, which is complete after `finish`."""
        source = whole_on_device(tensor)
        buffer = next(self._free, None)
        if (
            buffer is None
            or buffer.shape != source.shape
            or buffer.dtype != source.dtype
            or buffer.is_pinned() != source.is_cuda
        ):
            buffer = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
        self._buffers.append(buffer)
        if source.is_cuda:
            self._devices.add(source.device)
        return buffer.copy_(source, non_blocking=source.is_cuda)

    def finish(self) -> None:
        """Wait for all copies, and forget the buffers that this save did not need."""
        self._free = iter(())
        for device in self._devices:
            torch.accelerator.synchronize(device)
