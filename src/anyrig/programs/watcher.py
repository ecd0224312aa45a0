"""What watches the program of a process, and how a command asks a process for it.

::

    anyrig run --watch hazards ─ ANYRIG_WATCHERS=[["anyrig.hazards.program_watch:ProgramWatch", …]]
       └─ rank 0
            begin     at the program's import of torch
            explain   the exception that ends the program, before it is printed
            finish    reports, or leaves what was found to the command; the exit status

A process loads the watchers that it was asked for, and no others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .program import Program

VARIABLE = "ANYRIG_WATCHERS"
_PACKAGE = "anyrig."


class Watcher:
    """Watches the program of this process. Does nothing, unless a derived class does."""

    @classmethod
    def from_options(cls, options: Any) -> Watcher:
        """Return a watcher with the options of its `Order`. Imports no torch."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin to watch, as soon as the program has imported torch."""

    def explain(self, error: BaseException) -> str | None:
        """Note the exception that ends the program; return text to print below its traceback."""
        return None

    def finish(self, program: Program, status: int) -> int:
        """End, and return the exit status of the process.

        Args:
            program: what has run.
            status: its exit status.
        """
        return status


@dataclass(frozen=True)
class Order:
    """A watcher that a command wants in the processes that it starts.

    Attributes:
        watcher: its class, as ``"anyrig.module:Class"``.
        options: what its `Watcher.from_options` takes; kept as JSON.
    """

    watcher: str
    options: Any


def variables_of(orders: Iterable[Order | None]) -> dict[str, str]:
    """Return the environment variable that asks a process for watchers; None asks for nothing."""
    asked = [[order.watcher, order.options] for order in orders if order is not None]
    return {VARIABLE: json.dumps(asked)} if asked else {}


def watchers_of_environment() -> list[Watcher]:
    """Return the watchers that this process was asked for, and hide the orders from its children.

    Raises:
        ValueError: an order names something else than a class of this package.
    """
    watchers = []
    for name, options in json.loads(os.environ.pop(VARIABLE, "[]")):
        module, _, kind = name.partition(":")
        if not module.startswith(_PACKAGE):
            raise ValueError(f"{VARIABLE} names {name!r}, which is not of anyrig; unset it")
        watchers.append(getattr(import_module(module), kind).from_options(options))
    return watchers
