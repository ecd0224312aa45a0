"""`MeasuredProcess`, which measures the program of this process and leaves a record or a report."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...programs.program import Program
from ...programs.watcher import Watcher
from ..facts import ProgramError
from ..record_folder import RecordFolder
from ..watching import program_error_of
from .options import MeasureOptions

if TYPE_CHECKING:
    from .profiled_window import ProfiledWindow


class MeasuredProcess(Watcher):
    """Measures the program of this process, from its import of torch on."""

    def __init__(self, options: MeasureOptions) -> None:
        self._options = options
        self._window: ProfiledWindow | None = None
        self._error: ProgramError | None = None

    @classmethod
    def from_options(cls, options: Any) -> MeasuredProcess:
        """Return what measures as a `MeasureOptions.order` says."""
        return cls(MeasureOptions.of_order(options))

    def begin(self) -> None:
        """Begin to measure. Imports torch."""
        from .profiled_window import ProfiledWindow

        self._window = ProfiledWindow()
        self._window.start()

    def explain(self, error: BaseException) -> None:
        """Note the exception that ends the program."""
        if self._window is not None:
            self._window.stop()
        self._error = program_error_of(error)

    def finish(self, program: Program, status: int) -> int:
        """Write the report, or leave the record in the folder.

        Raises:
            ReportError: a file cannot be written.
        """
        if self._window is None:
            return status  # the program did not import torch
        from .measured_facts import write_report
        from .reading import record_of_window

        self._window.stop()
        rank = int(os.environ.get("RANK", "0"))
        options = self._options
        if options.folder is not None:
            record = record_of_window(self._window, options.folder, options.origin_ns, rank)
            RecordFolder(options.folder).write(record)
            return status
        with tempfile.TemporaryDirectory(prefix="anyrig-trace-") as folder:
            record = record_of_window(self._window, Path(folder), options.origin_ns, rank)
        write_report(options.reporting, program, [record], status, self._error)
        return status
