"""`anyrig virtual`: manage the extension that provides the virtual GPUs."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from .help_screen import Command
from .script_command import Commands

virtual = typer.Typer(
    cls=Commands,
    help="The virtual GPUs that `anyrig rehearse` runs on.",
    no_args_is_help=True,
)


@virtual.callback()
def _root() -> None:
    """Keep `build` a subcommand: typer would merge a single command into its parent."""


@virtual.command(cls=Command)
def build(
    again: Annotated[
        bool, typer.Option("--again", help="Rebuild even if a build for this PyTorch exists.")
    ] = False,
) -> None:
    """Compile the virtual GPUs for the installed PyTorch, so that a rehearsal need not."""
    from ..virtual import extras
    from ..virtual.build import build_extension

    started = time.monotonic()
    library = build_extension(again=again)
    if sys.platform == "linux":
        extras.build_libraries(again=again)
    typer.echo(f"{library} ({time.monotonic() - started:.1f} s)")


@virtual.command("measure-launch", cls=Command)
def measure_launch() -> None:
    """Measure how long this machine's host takes for a PyTorch operator with its launch.

    It needs a real GPU, and prints the flag that tells `anyrig rehearse` the time.
    """
    import torch

    from ..errors import NoDeviceError
    from ..virtual.clock_settings import measure_host_seconds
    from ..virtual.installed import installation

    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None or installation() is not None:
        raise NoDeviceError(
            "no real GPU is here, and launches cannot be measured without one; run the command "
            "where one is, or rehearse without --host-launch, which assumes 10 us"
        )
    typer.echo(f"--host-launch {1e6 * measure_host_seconds(device):.1f}us")
