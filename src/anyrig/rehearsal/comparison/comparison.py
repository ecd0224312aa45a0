"""`Comparison`: one program on several rigs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...virtual.rig import VirtualRig
from ..more_memory import last_step
from .compared_rig import ComparedRig, compare_rig, is_out_of_memory
from .missing_memory import missing_bytes, with_more_memory
from .prices import Prices
from .rehearsed_apart import RehearsedApart, rehearse_apart
from .told_apart import find_alike

FORMAT, VERSION = "anyrig-comparison", 1
_WITHOUT_DATA = ("--shape-only", "--assume-values")


@dataclass(frozen=True)
class Comparison:
    """A program to rehearse on several rigs.

    Attributes:
        flags: further flags of ``anyrig rehearse``, the same for all rigs.
        command: the program and its arguments.
        prices: the prices of GPUs; None for none.
        shows_output: copy the program's output to standard error.
    """

    flags: tuple[str, ...]
    command: tuple[str, ...]
    prices: Prices | None
    shows_output: bool

    def rehearse_on(self, rig: VirtualRig) -> ComparedRig:
        """Rehearse the program on a rig, and return what was found.

        If the program runs out of memory, it is rehearsed once more, without data and on GPUs with
        more memory, to find by how much the rig is too small.
        """
        found = rehearse_apart(rig, self.flags, self.command, shows_output=self.shows_output)
        missing = self._missing_bytes(rig, found)
        status, facts, line = found.status, found.facts, found.last_line
        return compare_rig(rig, status, facts, line, self.prices, missing)

    def _missing_bytes(self, rig: VirtualRig, found: RehearsedApart) -> int | None:
        before = found.facts
        if before is None or not is_out_of_memory(before):
            return None
        flags = [flag for flag in self.flags if flag not in _WITHOUT_DATA]
        # A later `--steps` takes precedence.
        flags += [*_WITHOUT_DATA, f"--steps={last_step(len(before['steps']))}"]
        after = rehearse_apart(with_more_memory(rig), flags, self.command, shows_output=False).facts
        return None if after is None else missing_bytes(before, after)

    def as_json(self, rows: Sequence[ComparedRig]) -> dict[str, Any]:
        """Return the rows as one JSON object."""
        prices = self.prices
        return {
            "format": FORMAT,
            "version": VERSION,
            "command": list(self.command),
            "prices": None
            if prices is None
            else {"currency": prices.currency, "per_hour": dict(prices.per_hour)},
            "rigs": [row.as_json() for row in rows],
            "not_told_apart": [asdict(alike) for alike in find_alike(rows)],
        }
