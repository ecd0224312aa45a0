"""`anyrig virtual`: what concerns the virtual GPUs themselves."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

virtual = typer.Typer(help="The virtual GPUs that `anyrig rehearse` runs on.", no_args_is_help=True)


@virtual.callback()
def _root() -> None:
    """Keep `build` a command of its own although it is the only one."""


@virtual.command()
def build(
    again: Annotated[
        bool, typer.Option("--again", help="Build even if this PyTorch has a build already.")
    ] = False,
) -> None:
    """Compile the virtual GPUs for the installed PyTorch, before a rehearsal has to."""
    from ..virtual.build import build_extension
    from ..virtual.driver.library import build_library

    started = time.monotonic()
    library = build_extension(again=again)
    if sys.platform == "linux":
        build_library(again=again)
    typer.echo(f"{library} ({time.monotonic() - started:.1f} s)")
