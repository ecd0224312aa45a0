"""Undo the changes of a load that fails half way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress


class Undo:
    """What to do, the latest change first, so that objects are as they were before a load."""

    def __init__(self) -> None:
        self._actions: list[Callable[[], object]] = []

    def add(self, action: Callable[[], object]) -> None:
        """Add an action that undoes the next change."""
        self._actions.append(action)

    def run(self) -> None:
        """Undo all changes; an action that fails does not prevent the others."""
        while self._actions:
            with suppress(Exception):
                self._actions.pop()()
