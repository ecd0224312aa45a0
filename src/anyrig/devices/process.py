"""A process that uses a device."""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class DeviceProcess:
    """One process on one device.

    Attributes:
        pid: the process id in the driver's namespace, which may differ from a container's.
        name: the name of its program; None if the process has ended, is hidden, or is in another
            namespace.
        used_bytes: how much of the device's memory the process uses; None if the driver does not
            report it, as under WSL, on Windows, and in most containers.
    """

    pid: int
    name: str | None
    used_bytes: int | None


def process_name(pid: int) -> str | None:
    """Return the name of the program of process `pid`, or None if it is not visible.

    Characters that cannot be printed become ``?``.
    """
    try:
        name = psutil.Process(pid).name()
    except (psutil.Error, ValueError, OverflowError):  # a driver may report any number as a pid
        return None
    return "".join(letter if letter.isprintable() else "?" for letter in name)
