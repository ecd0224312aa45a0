"""Virtual GPUs: CUDA devices for PyTorch on a machine that has none.

Importing this package does not import torch or build anything. `install` does both.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .build import load_extension as load_extension
    from .clock_reading import ClockReading as ClockReading
    from .clock_reading import clock as clock
    from .installed import Installation as Installation
    from .installed import install as install
    from .installed import installation as installation
    from .outside_memory import OutsideMemory as OutsideMemory
    from .outside_memory import memory_outside_allocator as memory_outside_allocator
    from .rig import VirtualDevice as VirtualDevice
    from .rig import VirtualRig as VirtualRig

# Each public name and the submodule that defines it. No submodule may share a function's name:
# importing the submodule would replace the function in this package.
_FILE_OF_NAME = {
    "ClockReading": "clock_reading",
    "Installation": "installed",
    "OutsideMemory": "outside_memory",
    "VirtualDevice": "rig",
    "VirtualRig": "rig",
    "clock": "clock_reading",
    "install": "installed",
    "installation": "installed",
    "load_extension": "build",
    "memory_outside_allocator": "outside_memory",
}

__all__ = sorted(_FILE_OF_NAME)


def __getattr__(name: str) -> object:
    file = _FILE_OF_NAME.get(name)
    if file is None:
        raise AttributeError(f"module 'anyrig.virtual' has no attribute {name!r}")
    value = getattr(import_module(f".{file}", __name__), name)
    globals()[name] = value
    return value
