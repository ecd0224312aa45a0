"""The command `anyrig`: its subcommands, and how their errors reach the terminal."""

from __future__ import annotations

import atexit
import gc
import sys
from typing import Annotated

import typer

from .. import __version__
from ..errors import AnyrigError
from ..virtual.torch_import import collect_nothing_in_imports
from .check import check
from .checkpoint import checkpoint
from .devices import devices
from .doctor import doctor
from .migrate import migrate
from .program_argument import ScriptCommand
from .rehearse import rehearse
from .run import run
from .verify import verify
from .virtual import virtual

# torchrun takes both spellings of a flag: --nproc-per-node and --nproc_per_node.
FLAG_CONTEXT = {"token_normalize_func": lambda name: name.replace("_", "-")}

# Commands that start a script pass everything after the script's name to the script.
SCRIPT_CONTEXT = {
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "ignore_unknown_options": False,
    **FLAG_CONTEXT,
}

app = typer.Typer(
    name="anyrig",
    help="Run a PyTorch model on any rig: no GPU, one, several unequal ones, several nodes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(devices)
app.command(context_settings=FLAG_CONTEXT)(doctor)
app.command(cls=ScriptCommand, context_settings=SCRIPT_CONTEXT)(run)
app.command(cls=ScriptCommand, context_settings=SCRIPT_CONTEXT)(rehearse)
app.command(cls=ScriptCommand, context_settings=SCRIPT_CONTEXT)(verify)
app.command()(check)
app.command()(migrate)
app.add_typer(virtual, name="virtual")
app.add_typer(checkpoint, name="checkpoint")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"anyrig {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; print an `AnyrigError` as one message and exit with its code."""
    # After an import of torch, the garbage collection at exit would take half a second.
    atexit.register(gc.freeze)
    collect_nothing_in_imports()
    try:
        app()
    except AnyrigError as error:
        sys.stderr.write(f"anyrig: error: {error}\n")
        sys.exit(error.exit_code)
