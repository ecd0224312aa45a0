"""Explain the out-of-memory error of a program on virtual GPUs, at no cost before the error.

The backend notes where each block is made, and calls `RefusalWatch` for a request that it refuses,
before the error ends the running functions.
"""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..errors import MemoryTrackingError
from ..observe.events import Events
from ..observe.hooks import Observer
from ..observe.names import ModuleNames
from ..observe.source_line import LIBRARIES, SourceLine
from ..virtual.build import load_extension
from ..virtual.record_reading import forget_nodes

if TYPE_CHECKING:
    from ..memory.out_of_memory import OutOfMemoryReport

# A program may try many batches that do not fit. No more reports are made after this time.
_MOST_SECONDS = 10.0


class RefusalWatch(Observer):
    """Keeps the report of the last request that a virtual GPU has refused to this process."""

    def __init__(self) -> None:
        super().__init__(Events(step_ended=lambda optimizer: forget_nodes()))
        self._last: tuple[int, OutOfMemoryReport] | None = None
        # Not the exception, which would keep the program's tensors.
        self._failure: str | None = None
        self._seconds = 0.0

    def start(self) -> None:
        """Begin to note where memory is made. The rig is installed."""
        load_extension().watch_refusals(
            list(LIBRARIES), nn.Module.__call__.__code__, ModuleNames().name_within, self._note
        )
        super().start()

    def stop(self) -> None:
        """Note nothing from now on."""
        load_extension().stop_watching_refusals()
        super().stop()

    def report(self, error: BaseException) -> OutOfMemoryReport | None:
        """Return the report of an out-of-memory error, or None if no report was made for it.

        Raises:
            MemoryTrackingError: the report could not be made.
        """
        if self._failure is not None:
            raise MemoryTrackingError(self._failure)
        if self._last is None:
            return None
        device, report = self._last
        return report if f"GPU {device} " in str(error) else None

    def _note(
        self,
        device: int,
        requested_bytes: int,
        free_bytes: int,
        line: tuple[str, int, str] | None,
        module: str | None,
        operator: str,
    ) -> None:
        self._last = self._failure = None
        if self._seconds > _MOST_SECONDS:
            return
        from ..memory.refusal import RefusedRequest, report_request

        began = time.monotonic()
        request = RefusedRequest(
            torch.device("cuda", device),
            requested_bytes,
            free_bytes,
            _line_of(line),
            module,
            operator,
        )
        try:
            self._last = device, report_request(request, _made_blocks(device), _stacks())
        except Exception as failure:  # the program's own error must be raised
            self._failure = f"{type(failure).__name__}: {failure}"
        self._seconds += time.monotonic() - began


def _made_blocks(device: int) -> Any:
    from ..memory.refusal import MadeBlock

    return [
        MadeBlock(address, _line_of(line), *rest)
        for address, line, *rest in load_extension().read_block_origins(device)
    ]


def _line_of(line: tuple[str, int, str] | None) -> SourceLine | None:
    return None if line is None else SourceLine(*line)


def _stacks() -> list[FrameType]:
    """Return the innermost frame of this thread, and of the main thread if it is another one."""
    own = sys._getframe(1).f_back  # none in a thread of a backward pass
    main = threading.main_thread()
    other = None
    if threading.current_thread() is not main:
        other = sys._current_frames().get(main.ident or 0)
    return [frame for frame in (own, other) if frame is not None]
