"""`MeasureOptions`: how a rank is measured, handed to it in an environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from ..reporting import Reporting

VARIABLE = "ANYRIG_MEASURE"


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

    def variables(self) -> dict[str, str]:
        """Return the environment variables that hand the options to a process."""
        one = self.reporting
        paths = {"folder": self.folder, "json": one.json, "trace": one.trace, "report": one.report}
        texts = {name: None if path is None else str(path) for name, path in paths.items()}
        return {VARIABLE: json.dumps({"origin_ns": self.origin_ns, **texts})}

    @classmethod
    def of_environment(cls) -> MeasureOptions | None:
        """Return the options that this process was given, and hide them from its children."""
        text = os.environ.pop(VARIABLE, None)
        if text is None:
            return None
        values = json.loads(text)

        def path(name: str) -> Path | None:
            return None if values[name] is None else Path(values[name])

        reporting = Reporting(json=path("json"), trace=path("trace"), report=path("report"))
        return cls(values["origin_ns"], path("folder"), reporting)
