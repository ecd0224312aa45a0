"""Explain the out-of-memory error that ends a program."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from ..virtual.torch_import import when_torch_is_imported

if TYPE_CHECKING:
    from ..memory.recording import Recording
    from .refusal_watch import RefusalWatch

_NEXT_STEP = "Run again with --explain-oom: it names the modules and the lines that allocated this."


class OutOfMemoryWatch:
    """Explains the `torch.OutOfMemoryError` that ends a program, and imports no torch before it.

    ::

        watch = OutOfMemoryWatch(tracks=True)
        Program("train.py").run(watch.explain)

    With `tracks`, the report names the lines that allocated the memory: every operator is recorded
    from the program's import of torch on, which takes time, or, with `on_virtual_gpus`, these note
    the lines, which takes none. Without `tracks`, nothing happens before the error, and the report
    has the lines of the error only.

    Attributes:
        has_seen_error: whether such an error has ended the program.
    """

    def __init__(self, *, tracks: bool, on_virtual_gpus: bool = False) -> None:
        self.has_seen_error = False
        self._tracks = tracks
        self._recording: Recording | None = None
        self._refusals: RefusalWatch | None = None
        if tracks:
            begin = self._watch_refusals if on_virtual_gpus else self._record
            when_torch_is_imported(begin)

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
        next_step = "" if self._tracks else f"\n{_NEXT_STEP}"
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
