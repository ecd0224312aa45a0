"""`anyrig run`: a script on chosen devices, one process a device."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from .chosen_device import chosen_device, named_in_errors
from .group_flags import GroupFlags, with_group_flags
from .program_argument import check_program

if TYPE_CHECKING:
    from ..parallel.ranks.launcher import GroupResult


@with_group_flags
def run(
    context: typer.Context,
    flags: GroupFlags,
    script: Annotated[str, typer.Argument(help="A Python script, or with -m a module.")],
    module: Annotated[bool, typer.Option("-m", help="SCRIPT names a module.")] = False,
) -> None:
    """Run a script once for each chosen device; what follows its name is its own.

    Each run is a rank, with torchrun's environment: RANK, LOCAL_RANK, WORLD_SIZE and the rest. The
    script sees the chosen devices only, numbered from 0 in the order given; LOCAL_RANK, divided by
    --nproc-per-device, is the number of its own, which ANYRIG_DEVICE names. A single rank is this
    very process: its exit code, standard streams and signals are its own.
    """
    from ..devices.environment import environment_for, environments_of_ranks
    from ..devices.rig import Rig
    from ..parallel.ranks.options import RunOptions

    source, chosen = chosen_device(flags.device)
    with named_in_errors(source):
        rig = Rig.parse("auto" if chosen is None else chosen)
    # What was not chosen is not hidden either: without an accelerator nothing needs to change.
    hides = chosen is not None or rig.kind != "cpu"
    options = RunOptions(processes=len(rig) * flags.ranks_per_device, **flags.options)
    check_program(script, is_module=module)
    target = ["-m", script] if module else [script]
    if options.is_one_rank:
        command = [sys.executable, "-m", "anyrig.cli.rank", *target, *context.args]
        _become(command, os.environ | (environment_for(rig) if hides else {}) | alone())
    from ..parallel.ranks.ending import end_launcher
    from ..parallel.ranks.launcher import run_group

    command = ["-m", "anyrig.cli.rank", *target, *context.args]
    environments = environments_of_ranks(rig, flags.ranks_per_device) if hides else []
    status = status_of(run_group(options, command, environments))
    if options.rdzv_endpoint is not None:
        end_launcher(status)
    raise typer.Exit(status)


def status_of(result: GroupResult) -> int:
    """Return the exit status of a group, and say why it failed if it did; the command ends then."""
    # Once torch has been imported, Python spends half a second on looking for what it may free.
    gc.freeze()
    if result.failure is not None:
        kind = "error: " if result.signal is None else ""
        sys.stderr.write(f"anyrig: {kind}{result.failure}\n")
    return result.exit_code


def alone() -> dict[str, str]:
    """Return torchrun's variables for the only rank there is."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    zero = dict.fromkeys(["RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"], "0")
    one = dict.fromkeys(["WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"], "1")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return zero | one | place | {"TORCHELASTIC_RESTART_COUNT": "0"}


def _become(command: list[str], environment: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    if sys.platform == "win32":  # where exec would return to the shell before the script ends
        raise typer.Exit(subprocess.run(command, env=environment, check=False).returncode)
    os.execve(command[0], command, environment)  # noqa: S606 - no shell is the point
