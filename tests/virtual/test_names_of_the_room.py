"""The public names of `anyrig.virtual` are what they say, whichever file was imported first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyrig.virtual

NAMES = {
    "ClockReading",
    "Installation",
    "OutsideMemory",
    "VirtualDevice",
    "VirtualRig",
    "clock",
    "install",
    "installation",
    "load_extension",
    "memory_outside_allocator",
}


def test_names_are_pinned() -> None:
    assert set(anyrig.virtual.__all__) == NAMES


def test_no_file_takes_the_place_of_a_name() -> None:
    files = sorted(path.stem for path in Path(anyrig.virtual.__file__).parent.glob("[!_]*.py"))
    source = "".join(f"import anyrig.virtual.{file}\n" for file in files)
    source += f"assert all(callable(getattr(anyrig.virtual, name)) for name in {NAMES})"
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
