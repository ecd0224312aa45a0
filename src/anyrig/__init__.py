"""anyrig runs a PyTorch model on any rig: no GPU, one, several unequal ones, several machines.

Importing anyrig does nothing and is fast: each public name is loaded when it is first used, and
PyTorch with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

__version__ = "0.1.0"

# Each public name and the room that holds it. `tests/test_public_names.py` pins this list.
_ROOM_OF_NAME: dict[str, str] = {}

__all__ = ["__version__", *_ROOM_OF_NAME]


def __getattr__(name: str) -> object:
    room = _ROOM_OF_NAME.get(name)
    if room is None:
        raise AttributeError(f"module 'anyrig' has no attribute {name!r}")
    value = getattr(import_module(room, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
