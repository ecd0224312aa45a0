"""``--device`` and ``--disable-cuda`` for a user's script.

The flag takes precedence over ``ANYRIG_DEVICE``, which takes precedence over ``"auto"``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..errors import AnyrigError, DeviceFailedError, DeviceTextError
from .environment import DEVICE_VARIABLE as DEVICE_VARIABLE
from .rig import AUTO, Rig

if TYPE_CHECKING:
    import argparse

DEVICE_HELP = (
    "where to run: auto, all, cpu, cuda:1, 0,2, GPU-8932f937 "
    f"(default: the environment variable {DEVICE_VARIABLE}, else auto)"
)
DISABLE_CUDA_HELP = "run on the CPU even if there is an accelerator"


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--device TEXT`` and ``--disable-cuda`` to a parser; `rig_from_arguments` reads them."""
    group = parser.add_argument_group("device")
    group.add_argument("--device", metavar="DEVICE", help=DEVICE_HELP)
    group.add_argument("--disable-cuda", action="store_true", help=DISABLE_CUDA_HELP)


def rig_from_arguments(arguments: argparse.Namespace) -> Rig:
    """Return the rig that a script's arguments ask for.

    A string that names no device of this machine ends the program with a message on standard error
    and exit status 2, like any bad argument in argparse; `rig_from_options` raises instead.
    """
    try:
        return rig_from_options(arguments.device, arguments.disable_cuda)
    except (DeviceTextError, DeviceFailedError) as error:
        sys.stderr.write(f"{Path(sys.argv[0]).name}: error: {error}\n")
        raise SystemExit(DeviceTextError.exit_code) from None


def rig_from_options(device: str | None, disable_cuda: bool = False) -> Rig:
    """Return the rig for the values of both options, from typer, click or a configuration file.

    Raises:
        DeviceTextError: the values contradict each other, or a string names no device of this
            machine. The message begins with the flag or variable. In a command of typer or click,
            the error is also a UsageError, which they print before they exit with status 2.
        DeviceFailedError: a string names a device that cannot be used; in a command, the error is
            also a UsageError.
    """
    if disable_cuda:
        if device not in (None, "cpu"):
            raise _for_command(
                DeviceTextError(
                    f"--disable-cuda and --device {device} contradict each other; give one of them"
                )
            )
        return Rig.parse("cpu")
    source, text = _first_given(device)
    try:
        return Rig.parse(text)
    except (DeviceTextError, DeviceFailedError) as error:
        raise _for_command(type(error)(f"{source}: {error}")) from None


def _first_given(device: str | None) -> tuple[str, str]:
    if device is not None:
        return "--device", device
    if DEVICE_VARIABLE in os.environ:
        return DEVICE_VARIABLE, os.environ[DEVICE_VARIABLE]
    return "--device", AUTO


def _for_command(error: AnyrigError) -> AnyrigError:
    """Return `error`; while a command of click or typer runs, make it a UsageError, too."""
    for package in ("typer._click", "click"):  # typer vendors click, or uses the package
        click = sys.modules.get(f"{package}.globals")
        if click is not None and click.get_current_context(silent=True) is not None:
            usage_error = sys.modules[f"{package}.exceptions"].UsageError
            kind = type(error)
            shown = type(kind.__name__, (usage_error, kind), {"__module__": kind.__module__})
            return cast(AnyrigError, shown(str(error)))
    return error
