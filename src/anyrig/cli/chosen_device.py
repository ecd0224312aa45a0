"""The device text from a command's flag, else from the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ..devices.arguments import DEVICE_VARIABLE
from ..errors import DeviceFailedError, DeviceTextError, UnknownHardwareError


def chosen_device(flag: str | None) -> tuple[str, str | None]:
    """Return the flag or variable that names the devices, and its text; None if neither is set."""
    if flag is None and DEVICE_VARIABLE in os.environ:
        return DEVICE_VARIABLE, os.environ[DEVICE_VARIABLE]
    return "--device", flag


@contextmanager
def named_in_errors(flag: str) -> Iterator[None]:
    """Prefix `flag` to the message of an error about a device text."""
    try:
        yield
    except (DeviceFailedError, DeviceTextError, UnknownHardwareError) as error:
        raise type(error)(f"{flag}: {error}") from None
