"""A process that uses a device, as the operating system knows it."""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class DeviceProcess:
    """One process on one device.

    Attributes:
        pid: in the namespace of the driver, which a container does not always share.
        name: of its program; None if the process is gone, hidden, or in another namespace.
        used_bytes: of the device's memory; None where the driver does not say, as under WSL, on
            Windows, and in most containers.
    """

    pid: int
    name: str | None
    used_bytes: int | None


def process_name(pid: int) -> str | None:
    """Return the name of the program that process `pid` runs, or None if it cannot be seen.

    A process may call itself anything, so what is not printable becomes ``?``.
    """
    try:
        name = psutil.Process(pid).name()
    except (psutil.Error, ValueError, OverflowError):  # a driver may report any number as a pid
        return None
    return "".join(letter if letter.isprintable() else "?" for letter in name)
