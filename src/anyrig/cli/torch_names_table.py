"""The private names of PyTorch that each room uses, as a table and as JSON."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..private_names import NEWEST, OLDEST, as_text
from ..processes.preflight.torch_names import survey_names


def names_table(width: int) -> Group:
    """Return the version of PyTorch, the tested versions, and a row for each room."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False, width=width)
    table.add_column("room", no_wrap=True)
    table.add_column("private names", justify="right", no_wrap=True)
    table.add_column("missing, and what breaks", ratio=1, overflow="fold")
    for room in survey_names():
        missing = "\n".join(f"{one.name}: {one.breaks}" for one in room.missing)
        style = "red" if missing else None
        table.add_row(room.room, str(room.used), Text(missing or "none"), style=style)
    title = f"PyTorch {_version()}, tested with {as_text(OLDEST)} to {as_text(NEWEST)}"
    return Group(Text(""), Text(title), table)


def names_as_json() -> dict[str, object]:
    """Return the same facts for `--json`."""
    return {
        "version": _version(),
        "oldest_tested": as_text(OLDEST),
        "newest_tested": as_text(NEWEST),
        "rooms": [
            {
                "room": room.room,
                "private_names": room.used,
                "missing": [{"name": one.name, "breaks": one.breaks} for one in room.missing],
            }
            for room in survey_names()
        ],
    }


def _version() -> str:
    import torch

    return str(torch.__version__)
