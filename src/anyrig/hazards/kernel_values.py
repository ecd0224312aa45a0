"""Saved values on devices whose kernels see every write, with and without data."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..observe.hooks import Replacements
from ..observe.source_line import LIBRARIES
from ..virtual.saved_values import Line, SavedValues
from .check import Check
from .hazard import Hazard, Place
from .overwritten import describe_overwritten, describe_rebound, updates_statistics


class KernelValues(Check):
    """Lets the kernels watch what autograd saves."""

    def __init__(self, saved: SavedValues, report: Callable[[Hazard], None]) -> None:
        self._saved, self._report = saved, report
        self._pauses = 0

    def start(self, replacements: Replacements) -> None:
        """Watch the values that are saved from now on."""
        from ..parallel.engines.replicas.replicas import ReplicaSet

        # Each call sends the parameters to the replicas again, with the same values, and `Replicas`
        # keeps track of changes itself.
        replacements.around(ReplicaSet, "begin", self._call_unwatched)
        # It changes each input by a little through `.data`, and restores it. Private: programs may
        # have imported the public functions before. test_watch_hazards.py would notice a change.
        module = importlib.import_module("torch.autograd.gradcheck")
        replacements.around(module, "_gradcheck_helper", self._call_unwatched)
        self._watch()

    def _call_unwatched(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self._pauses += 1
        self.stop()
        try:
            return call(*arguments, **options)
        finally:
            self._pauses -= 1
            if self._pauses == 0:
                self._watch()

    def _watch(self) -> None:
        self._saved.watch(LIBRARIES, self._used_overwritten)

    def stop(self) -> None:
        """Watch no more values."""
        self._saved.stop()

    def data_assigned(self, tensor: Tensor, place: Place) -> None:
        """Let the saved values of a tensor follow it to its new memory, as PyTorch does."""
        self._saved.note_assigned(tensor)

    def _used_overwritten(
        self,
        tensor: Tensor,
        saved: Line | None,
        written: Line | None,
        operator: str | None,
        node: str | None,
    ) -> None:
        """Report a value that was used. Called by the backend, in the middle of a backward pass."""
        places = _place("saved", saved), _place("written", written)
        if operator is None:
            self._report(describe_rebound(tensor, *places, node))
        elif not updates_statistics(operator):
            self._report(describe_overwritten(tensor, *places, operator, node))


def _place(role: str, line: Line | None) -> Place:
    return Place(role, None) if line is None else Place(role, *line)
