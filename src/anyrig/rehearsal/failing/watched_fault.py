"""`WatchedFault`: an injected failure in the ranks of a rehearsal, and the account of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...programs.watcher import Order
from ..facts import StepFacts
from ..fault_facts import FaultFacts
from .account import AttemptTimes, account_for
from .fault import Fault
from .injection import FaultInjection
from .rank_events import read_events


@dataclass(frozen=True)
class WatchedFault:
    """An injected failure, and the folder with the notes of the ranks.

    Attributes:
        fault: the failure.
        folder: the folder.
    """

    fault: Fault
    folder: Path

    @classmethod
    @contextmanager
    def of(cls, fault: Fault) -> Iterator[WatchedFault]:
        """Make a folder for the ranks that the block starts, and remove it after the block."""
        with tempfile.TemporaryDirectory(prefix="anyrig-fault-") as folder:
            yield cls(fault, Path(folder))

    @property
    def order(self) -> Order:
        """The order for each rank."""
        return FaultInjection.order(self.fault, self._file)

    def account(
        self, attempts: Sequence[AttemptTimes], limit_seconds: float, steps: Sequence[StepFacts]
    ) -> FaultFacts:
        """Return what happened, once the ranks have ended.

        Args:
            attempts: the launcher's attempts.
            limit_seconds: the time limit of collectives.
            steps: the steps of the ranks.
        """
        return account_for(self.fault, read_events(self._file), attempts, limit_seconds, steps)

    @property
    def _file(self) -> Path:
        return self.folder / "events"
