"""``--device`` and ``--disable-cuda`` for a script of one's own.

The flag counts first, then the environment's word ``ANYRIG_DEVICE``, then ``"auto"``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..errors import DeviceFailedError, DeviceTextError
from .environment import DEVICE_VARIABLE as DEVICE_VARIABLE
from .rig import Rig

if TYPE_CHECKING:
    import argparse

DEVICE_HELP = (
    "where to run: auto, all, cpu, cuda:1, 0,2, GPU-8932f937 "
    f"(default: the environment's {DEVICE_VARIABLE}, else auto)"
)
DISABLE_CUDA_HELP = "run on the CPU even where there is an accelerator"


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser ``--device TEXT`` and ``--disable-cuda``; `rig_from_arguments` reads them."""
    group = parser.add_argument_group("device")
    group.add_argument("--device", metavar="DEVICE", help=DEVICE_HELP)
    group.add_argument("--disable-cuda", action="store_true", help=DISABLE_CUDA_HELP)


def rig_from_arguments(arguments: argparse.Namespace) -> Rig:
    """Return the rig that a script's arguments ask for.

    A text that names no device here ends the program with one message on standard error and exit
    status 2, as argparse does for any other bad argument; `Rig.parse` raises instead.
    """
    return rig_from_options(arguments.device, arguments.disable_cuda)


def rig_from_options(device: str | None, disable_cuda: bool = False) -> Rig:
    """The same from the two values, for typer, click, or a configuration file."""
    if disable_cuda:
        if device not in (None, "cpu"):
            _end(f"--disable-cuda and --device {device} contradict each other; give one of them")
        return Rig.parse("cpu")
    source, text = _first_given(device)
    try:
        return Rig.parse(text)
    except (DeviceTextError, DeviceFailedError) as error:
        _end(f"{source}: {error}")


def _first_given(device: str | None) -> tuple[str, str]:
    if device is not None:
        return "--device", device
    if DEVICE_VARIABLE in os.environ:
        return DEVICE_VARIABLE, os.environ[DEVICE_VARIABLE]
    return "--device", "auto"


def _end(message: str) -> NoReturn:
    sys.stderr.write(f"{Path(sys.argv[0]).name}: error: {message}\n")
    raise SystemExit(DeviceTextError.exit_code)
