"""`anyrig run`: run a script on the chosen devices, one process per device."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from .chosen_device import chosen_device, named_in_errors
from .group_flags import GroupFlags
from .program_argument import MODULE, NO_PYTHON, check_program, rank_words
from .report_flags import ReportFlags, measure_options, measured_ranks
from .torchrun_flags import count_ranks, run_options, script_arguments
from .watch_flag import WATCH, read_watched
from .with_flags import with_flags

if TYPE_CHECKING:
    from ..processes.launcher import GroupResult


@with_flags
def run(
    context: typer.Context,
    *,
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="A Python script; with -m, a module.")
    ],
    module: MODULE = False,
    no_python: NO_PYTHON = False,
    watch: WATCH = None,
    files: ReportFlags,
    flags: GroupFlags,
) -> None:
    """Run a script in one process per chosen device. The words after SCRIPT are its arguments.

    The flags are torchrun's, with the same meaning: in a command line, replace torchrun by anyrig
    run. Each process is a rank, with torchrun's environment: RANK, LOCAL_RANK, WORLD_SIZE and the
    rest. The script sees only the chosen devices, numbered from 0 in the given order. Rank i of a
    node uses device i, which ANYRIG_DEVICE names. If there are more ranks than devices,
    neighbouring ranks share a device. A single rank replaces this process, so the script has the
    command's exit code, standard streams and signals.
    """
    from ..devices.environment import environment_for, environments_of_ranks
    from ..devices.rig import Rig
    from ..processes.places import ERROR_FILE
    from ..programs.watcher import variables_of
    from ..rehearsal.out_of_memory import OutOfMemoryWatch

    source, chosen = chosen_device(flags.device)
    with named_in_errors(source):
        rig = Rig.parse("auto" if chosen is None else chosen)
    # If nothing was chosen and there is no accelerator, there is nothing to hide.
    hides = chosen is not None or rig.kind != "cpu"
    options = run_options(flags, count_ranks(flags, tuple(rig)))
    watched = read_watched(watch)
    measured = measure_options(files, is_watched=watched.profile)
    if no_python and (watch or measured is not None):
        raise typer.BadParameter(
            "it runs another program than Python, and --watch, --report, --trace and --json watch "
            "a Python script; drop it, or them",
            param_hint="--no-python",
        )
    check_program(script, is_module=module, is_python=not no_python)
    target = rank_words(script, is_module=module, is_python=not no_python)
    arguments = script_arguments(context.args)
    command = ["-m", "anyrig.cli.rank", *target, *arguments]
    explained = OutOfMemoryWatch.order(tracks=watched.memory)
    role = {} if flags.role is None else {"ROLE_NAME": flags.role}
    if options.is_one_rank:
        visibility = environment_for(rig) if hides else {}
        variables = visibility | single_rank_variables(options.master_port) | role
        given = [None if one is None else one.order for one in (watched.hazards, measured)]
        environment = os.environ | variables | variables_of([*given, explained])
        environment.pop(ERROR_FILE, None)  # set if a rank runs this command; no launcher reads it
        _replace_process([sys.executable, *command], environment)
    from ..hazards.program_watch import watched_ranks
    from ..processes.launcher import run_group
    from ..processes.torch_faults import end_launcher
    from ..programs.program import Program

    count = options.processes
    environments = environments_of_ranks(rig, count) if hides else [{} for _ in range(count)]
    program = Program(script, tuple(arguments), is_module=module)
    with (
        measured_ranks(measured, program, count) as (to_measure, write_report),
        watched_ranks(watched.hazards) as (to_watch, report_hazards),
    ):
        more = role | variables_of([to_watch, to_measure, explained])
        result = run_group(options, command, [own | more for own in environments])
        status = report_hazards(status_of(result))
        write_report(result)
    if options.rdzv_endpoint is not None:
        end_launcher(status)
    raise typer.Exit(status)


def status_of(result: GroupResult) -> int:
    """Return the exit status of a group, and print why it failed."""
    if result.failure is not None:
        kind = "error: " if result.signal is None else ""
        sys.stderr.write(f"anyrig: {kind}{result.failure}\n")
    return result.exit_code


def single_rank_variables(port: int = 0) -> dict[str, str]:
    """Return torchrun's environment variables for a group of one rank.

    MASTER_PORT is `port`, or any free port if `port` is 0 or in use.
    """
    try:
        free = socket.create_server(("127.0.0.1", port))
    except OSError:
        free = socket.create_server(("127.0.0.1", 0))
    with free:
        port = free.getsockname()[1]
    zero = dict.fromkeys(["RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"], "0")
    one = dict.fromkeys(["WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"], "1")
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return zero | one | master | {"TORCHELASTIC_RESTART_COUNT": "0"}


def _replace_process(command: list[str], environment: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    if sys.platform == "win32":  # exec would return to the shell before the script ends
        raise typer.Exit(subprocess.run(command, env=environment, check=False).returncode)
    os.execve(command[0], command, environment)  # noqa: S606 - no shell is the point
