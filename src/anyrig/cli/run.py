"""`anyrig run`: a script on chosen devices, one process a device."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated, NoReturn, Optional

import typer

from ..devices.arguments import DEVICE_HELP, DEVICE_VARIABLE


def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A Python script, or with -m a module.")],
    device: Annotated[
        Optional[str],  # noqa: UP045 - typer reads it at run time, on Python 3.10 too
        typer.Option("--device", metavar="DEVICE", help=DEVICE_HELP, show_default=False),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT names a module.")] = False,
    processes_per_device: Annotated[
        int, typer.Option("--nproc-per-device", min=1, help="Ranks on each device.")
    ] = 1,
    nodes: Annotated[
        str, typer.Option("--nnodes", metavar="N|MIN:MAX", help="How many machines.")
    ] = "1",
    rdzv_endpoint: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--rdzv-endpoint",
            metavar="HOST:PORT",
            help="Where machines meet; on all alike.",
        ),
    ] = None,
    rdzv_id: Annotated[
        str, typer.Option("--rdzv-id", help="Tells this job from another at the same place.")
    ] = "anyrig",
    rdzv_timeout_seconds: Annotated[
        float, typer.Option("--rdzv-timeout", metavar="SECONDS", help="How long to wait there.")
    ] = 600.0,
    max_restarts: Annotated[
        int, typer.Option("--max-restarts", min=0, help="Start again after a failure, so often.")
    ] = 0,
    timeout_seconds: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help="How long a rank waits for the others in a collective, unless the script says.",
        ),
    ] = None,
    local_address: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--local-addr", help="This machine's address as the others see it."),
    ] = None,
    log_folder: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--log-dir", help="Keep each rank's output here."),
    ] = None,
) -> None:
    """Run a script once for each chosen device; what follows its name is its own.

    Each run is a rank, with torchrun's environment: RANK, LOCAL_RANK, WORLD_SIZE and the rest. The
    script sees the chosen devices only, numbered from 0 in the order given; LOCAL_RANK, divided by
    --nproc-per-device, is the number of its own. A single rank is this very process: its exit code,
    standard streams and signals are its own.
    """
    if not module and not Path(script).exists():
        raise typer.BadParameter(f"there is no script {script!r}", param_hint="SCRIPT")
    from ..devices.environment import environment_for
    from ..devices.rig import Rig
    from ..parallel.ranks.options import RunOptions

    chosen = device if device is not None else os.environ.get(DEVICE_VARIABLE)
    rig = Rig.parse("auto" if chosen is None else chosen)
    # What was not chosen is not hidden either: without an accelerator nothing needs to change.
    environment = {} if chosen is None and rig.kind == "cpu" else environment_for(rig)
    options = RunOptions(
        processes=len(rig) * processes_per_device,
        nodes=nodes,
        rdzv_endpoint=rdzv_endpoint,
        rdzv_id=rdzv_id,
        rdzv_timeout_seconds=rdzv_timeout_seconds,
        max_restarts=max_restarts,
        timeout_seconds=timeout_seconds,
        local_address=local_address,
        log_folder=log_folder,
    )
    target = ["-m", script] if module else [script]
    if options.is_one_rank:
        command = [sys.executable, *target, *context.args]
        _become(command, os.environ | environment | _alone())
    from ..parallel.ranks.launcher import run_group

    command = ["-u", "-m", "anyrig.cli.rank", *target, *context.args]
    result = run_group(options, command, environment)
    if result.failure is not None:
        kind = "error: " if result.signal is None else ""
        sys.stderr.write(f"anyrig: {kind}{result.failure}\n")
    raise typer.Exit(result.exit_code)


def _alone() -> dict[str, str]:
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
