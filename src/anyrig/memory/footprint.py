"""The footprint of all devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import MemoryTrackingError
from .device_footprint import DeviceFootprint
from .leaks import Leak


@dataclass
class Footprint:
    """What filled the memory of all devices while it was tracked.

    Attributes:
        devices: the footprints of the devices that held memory, CUDA devices first. Empty until
            tracking has ended. With ``every="step"``, the footprints of the step with the highest
            peak.
        steps: with ``every="step"``, one footprint for each optimizer step.
        leaks: with ``every="step"`` and at least four steps, the memory that grew in each of the
            last three, fastest growth first.
    """

    devices: tuple[DeviceFootprint, ...] = ()
    steps: tuple[Footprint, ...] = ()
    leaks: tuple[Leak, ...] = ()
    _snapshot: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def peak_bytes(self) -> int:
        """The sum of the allocated bytes at each device's peak."""
        return sum(device.peak.allocated_bytes for device in self.devices)

    def table(self) -> str:
        """Return the footprint as a table for a terminal, 80 columns wide, and a line per leak."""
        from .table import format_table

        return format_table(self.devices) + "".join(f"grows: {leak}\n" for leak in self.leaks)

    def json(self) -> str:
        """Return the footprint as JSON: an object with a list of devices."""
        from .facts import format_json

        return format_json(self.devices, [step.devices for step in self.steps], self.leaks)

    def html(self) -> str:
        """Return the footprint as a self-contained HTML page with a chart for each device."""
        from .page import format_page

        return format_page(self.devices)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the footprint to a file atomically, and return its path.

        Args:
            path: the file. Its suffix selects the format: ``.txt``, ``.json``, ``.html``, or
                ``.pickle`` for a snapshot of the CUDA devices that https://pytorch.org/memory_viz
                opens.

        Raises:
            MemoryTrackingError: the suffix is unknown, or is ``.pickle`` and there was no CUDA
                device.
        """
        path = Path(path)
        writers: dict[str, Callable[[], bytes]] = {
            ".txt": lambda: self.table().encode(),
            ".json": lambda: self.json().encode(),
            ".html": lambda: self.html().encode(),
            ".pickle": self._pickle,
        }
        if path.suffix not in writers:
            raise MemoryTrackingError(
                f"the name {path.name!r} selects no format; it must end in one of "
                f"{', '.join(writers)}"
            )
        from .atomic_file import write_atomically

        write_atomically(path, writers[path.suffix]())
        return path

    def _pickle(self) -> bytes:
        import pickle

        if self._snapshot is None:
            raise MemoryTrackingError(
                "a snapshot needs a CUDA device, and there was none; save the footprint as .html"
            )
        return pickle.dumps(self._snapshot)
