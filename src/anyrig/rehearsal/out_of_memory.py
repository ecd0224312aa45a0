"""Explain the out-of-memory error that ends a program."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from ..programs.watcher import Order, Watcher

if TYPE_CHECKING:
    from ..memory.recording import Recording
    from .refusal_watch import RefusalWatch

_NEXT_STEP = (
    "Run again with --watch memory: it names the modules and the lines that allocated this."
)


class OutOfMemoryWatch(Watcher):
    """Explains the `torch.OutOfMemoryError` that ends a program, and imports no torch before it.

    ::

        watch = OutOfMemoryWatch(tracks=True)
        when_torch_is_imported(watch.begin)
        Program("train.py").run(watch.explain)

    With `tracks`, the report names the lines that allocated the memory: every operator is recorded
    from the program's import of torch on, which takes time. With `on_virtual_gpus`, these note the
    lines, which takes none. Otherwise, nothing happens before the error, and the report has the
    lines of the error only.

    Attributes:
        has_seen_error: whether such an error has ended the program.
    """

    def __init__(self, *, tracks: bool = False, on_virtual_gpus: bool = False) -> None:
        self.has_seen_error = False
        self._tracks, self._on_virtual_gpus = tracks, on_virtual_gpus
        self._recording: Recording | None = None
        self._refusals: RefusalWatch | None = None

    @classmethod
    def order(cls, *, tracks: bool = False, on_virtual_gpus: bool = False) -> Order:
        """Return the order for a process to explain such an error; see the class."""
        return Order(f"{__name__}:{cls.__name__}", [tracks, on_virtual_gpus])

    @classmethod
    def from_options(cls, options: Any) -> OutOfMemoryWatch:
        """Return a watch with the options of an `order`."""
        tracks, on_virtual_gpus = options
        return cls(tracks=tracks, on_virtual_gpus=on_virtual_gpus)

    def begin(self) -> None:
        """Begin to note what allocates memory."""
        if self._on_virtual_gpus:
            self._watch_refusals()
        elif self._tracks:
            self._record()

    def explain(self, error: BaseException) -> str | None:
        """Return a report of the exception that ends the program, below its traceback.

        None if the exception is another one, or has a report already.
        """
        kind = getattr(sys.modules.get("torch"), "OutOfMemoryError", None)
        if kind is None or not isinstance(error, kind):
            return None
        self.has_seen_error = True
        if hasattr(error, "report"):
            return None
        knows_lines = self._tracks or self._on_virtual_gpus
        next_step = "" if knows_lines else f"\n{_NEXT_STEP}"
        try:
            return f"{self._report(error)}{next_step}"
        except Exception as failure:  # the program's own error must be printed
            return f"There is no report: {type(failure).__name__}: {failure}{next_step}"

    def _watch_refusals(self) -> None:
        from .refusal_watch import RefusalWatch

        self._refusals = RefusalWatch()
        self._refusals.start()

    def _record(self) -> None:
        from ..memory.recording import Recording

        # The dispatch mode belongs to a thread.
        if threading.current_thread() is threading.main_thread():
            self._recording = Recording(keeps_history=False, gives_way=True)
            self._recording.start_before_cuda()

    def _report(self, error: BaseException) -> str:
        from ..memory.out_of_memory import list_stacks, report_refusal
        from ..memory.untracked import report_untracked

        report = None if self._refusals is None else self._refusals.report(error)
        if report is not None:
            return str(report).rstrip()
        stacks = list_stacks(error.__traceback__)
        if self._recording is not None and self._recording.is_recording:
            report = report_refusal(self._recording.finish(*stacks), stacks)
        report = report or report_untracked(error, stacks)
        if report is None:
            return "The error does not say which device ran out of memory."
        return str(report).rstrip()
