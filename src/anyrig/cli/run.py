"""`anyrig run`: a script on chosen devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, Optional

import typer

from ..devices.arguments import DEVICE_HELP, DEVICE_VARIABLE

if TYPE_CHECKING:
    from ..devices.rig import Rig


def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A Python script, or with -m a module.")],
    device: Annotated[
        Optional[str],  # noqa: UP045 - typer reads it at run time, on Python 3.10 too
        typer.Option("--device", metavar="DEVICE", help=DEVICE_HELP, show_default=False),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT names a module.")] = False,
) -> None:
    """Run a script on chosen devices; what follows its name is its own.

    The script sees the chosen devices only, numbered from 0 in the order given. Its exit code,
    standard streams and signals are its own: on POSIX this process becomes the script's.
    """
    if not module and not Path(script).exists():
        raise typer.BadParameter(f"there is no script {script!r}", param_hint="SCRIPT")
    environment = dict(os.environ)
    if device is not None:
        from ..devices.rig import Rig

        environment |= environment_for(Rig.parse(device))
    target = ["-m", script] if module else [script]
    _become([sys.executable, *target, *context.args], environment)


def environment_for(rig: Rig) -> dict[str, str]:
    """Return the variables that show a new process the devices of `rig` and no others.

    By UUID, because indices mean one order to the driver and another to NVML.
    """
    if rig.kind == "cpu":
        return {"CUDA_VISIBLE_DEVICES": "", DEVICE_VARIABLE: "cpu"}
    uuids = [device.uuid for device in rig]
    if rig.kind == "cuda" and all(uuids):
        visible = ",".join(uuid for uuid in uuids if uuid)
        renumbered = ",".join(f"cuda:{index}" for index in range(len(rig)))
        return {"CUDA_VISIBLE_DEVICES": visible, DEVICE_VARIABLE: renumbered}
    return {DEVICE_VARIABLE: ",".join(device.text for device in rig)}


def _become(command: list[str], environment: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    if sys.platform == "win32":  # where exec would return to the shell before the script ends
        raise typer.Exit(subprocess.run(command, env=environment, check=False).returncode)
    os.execve(command[0], command, environment)  # noqa: S606 - no shell is the point
