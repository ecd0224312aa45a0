"""The command `anyrig`: its subcommands, and how their errors reach the terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .. import __version__
from ..errors import AnyrigError
from ..process_end import end_process, is_outermost, release_objects_of_program
from ..virtual.torch_import import collect_nothing_in_imports
from .check import check
from .checkpoint import checkpoint
from .compare import compare
from .devices import devices
from .doctor import doctor
from .fail import fail
from .first_hour import FIRST_HOUR
from .fit import fit
from .help_screen import HELP_NAMES, Command
from .migrate import migrate
from .plan import plan
from .rehearse import rehearse
from .run import run
from .script_command import Commands, ScriptCommand
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
    cls=Commands,
    help="Run a PyTorch model on any rig: no GPU, one, several unequal ones, several nodes.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP_NAMES},
)
app.command(cls=Command)(devices)
app.command(cls=Command, context_settings=FLAG_CONTEXT)(doctor)
app.command(cls=ScriptCommand, context_settings=SCRIPT_CONTEXT)(run)
app.command(cls=ScriptCommand, context_settings=SCRIPT_CONTEXT)(rehearse)
app.command("rehearse compare", cls=ScriptCommand, context_settings=SCRIPT_CONTEXT)(compare)
app.command("rehearse fail", cls=ScriptCommand, context_settings=SCRIPT_CONTEXT)(fail)
app.command(cls=ScriptCommand, context_settings=SCRIPT_CONTEXT)(verify)
app.command(cls=ScriptCommand, context_settings=SCRIPT_CONTEXT)(fit)
app.command(cls=ScriptCommand, context_settings=SCRIPT_CONTEXT)(plan)
app.command(cls=Command)(check)
app.command(cls=Command)(migrate)
app.add_typer(virtual, name="virtual")
app.add_typer(checkpoint, name="checkpoint")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"anyrig {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(FIRST_HOUR, nl=False)


def main() -> None:
    """Run the command line; print an `AnyrigError` as one message and exit with its code."""
    collect_nothing_in_imports()
    own = sys.modules["__main__"]
    status = 0
    try:
        app()
    except AnyrigError as error:
        sys.stderr.write(f"anyrig: error: {error}\n")
        status = error.exit_code
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            raise
        status = leaving.code or 0
    if is_outermost(sys._getframe(1)):
        has_run_program = sys.modules.get("__main__", own) is not own
        end_process(status, _release_program if has_run_program else None)
    sys.exit(status)


def _release_program() -> None:
    release_objects_of_program()
    if "torch" in sys.modules:  # otherwise, the program has no rig
        from ..virtual.installed import leave_gpus

        leave_gpus()
