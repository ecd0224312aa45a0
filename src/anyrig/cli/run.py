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
from .program_argument import MODULE, NO_PYTHON, check_program, rank_words
from .torchrun_flags import count_ranks, run_options, script_arguments

if TYPE_CHECKING:
    from ..processes.launcher import GroupResult


@with_group_flags
def run(
    context: typer.Context,
    flags: GroupFlags,
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="A Python script, or with -m a module.")
    ],
    module: MODULE = False,
    no_python: NO_PYTHON = False,
) -> None:
    """Run a script once for each chosen device; what follows its name is its own.

    The flags are torchrun's and have its meaning: where a command line says torchrun, say anyrig
    run. Each run is a rank, with torchrun's environment: RANK, LOCAL_RANK, WORLD_SIZE and the rest.
    The script sees the chosen devices only, numbered from 0 in the order given. Rank i of a node
    has device i, which ANYRIG_DEVICE names; where there are more ranks than devices, neighbours
    share one. A single rank is this very process: its exit code, standard streams and signals are
    its own.
    """
    from ..devices.environment import environment_for, environments_of_ranks
    from ..devices.rig import Rig

    source, chosen = chosen_device(flags.device)
    with named_in_errors(source):
        rig = Rig.parse("auto" if chosen is None else chosen)
    # What was not chosen is not hidden either: without an accelerator nothing needs to change.
    hides = chosen is not None or rig.kind != "cpu"
    options = run_options(flags, count_ranks(flags, tuple(rig)))
    check_program(script, is_module=module, is_python=not no_python)
    target = rank_words(script, is_module=module, is_python=not no_python)
    command = ["-m", "anyrig.cli.rank", *target, *script_arguments(context.args)]
    named = {} if flags.role is None else {"ROLE_NAME": flags.role}
    if options.is_one_rank:
        hiding = environment_for(rig) if hides else {}
        _become(
            [sys.executable, *command], os.environ | hiding | alone(options.master_port) | named
        )
    from ..processes.launcher import run_group
    from ..processes.torch_faults import end_launcher

    count = options.processes
    environments = environments_of_ranks(rig, count) if hides else [{} for _ in range(count)]
    status = status_of(run_group(options, command, [each | named for each in environments]))
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


def alone(port: int = 0) -> dict[str, str]:
    """Return torchrun's variables for the only rank there is, which meets itself at `port`.

    At any free one, if `port` is 0 or not free.
    """
    try:
        free = socket.create_server(("127.0.0.1", port))
    except OSError:
        free = socket.create_server(("127.0.0.1", 0))
    with free:
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
