"""`MeasureOptions`: how a rank is measured, as an order that a command gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...programs.watcher import Order
from ..reporting import Reporting


@dataclass(frozen=True)
class MeasureOptions:
    """How a process is measured.

    Attributes:
        origin_ns: when the command began, in nanoseconds since 1970; times count from then.
        folder: where the ranks of a group leave their records; None for a process that writes the
            report itself.
        reporting: what such a process writes.
    """

    origin_ns: int
    folder: Path | None
    reporting: Reporting

    @property
    def order(self) -> Order:
        """The order for a process to measure its program so."""
        one = self.reporting
        paths = {"folder": self.folder, "json": one.json, "trace": one.trace, "report": one.report}
        texts = {name: None if path is None else str(path) for name, path in paths.items()}
        options = {"origin_ns": self.origin_ns, **texts}
        return Order("anyrig.rehearsal.measured.measured_process:MeasuredProcess", options)

    @classmethod
    def of_order(cls, options: Mapping[str, Any]) -> MeasureOptions:
        """Return the options that an `order` has."""

        def path(name: str) -> Path | None:
            return None if options[name] is None else Path(options[name])

        reporting = Reporting(json=path("json"), trace=path("trace"), report=path("report"))
        return cls(options["origin_ns"], path("folder"), reporting)
