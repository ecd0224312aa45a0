"""The console of wide tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# The width of a table where the output is not a terminal, so that no row is wrapped.
_WIDEST_COLUMNS = 400


def wide_console() -> Console:
    """Return a console for the standard output, which wraps rows on terminals only."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_WIDEST_COLUMNS)
