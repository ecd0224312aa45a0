"""`anyrig rehearse`: a script on GPUs that are not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .group_flags import GroupFlags, with_group_flags
from .run import alone, status_of

if TYPE_CHECKING:
    from ..rehearsal.rehearsal import Rehearsal


@with_group_flags
def rehearse(
    context: typer.Context,
    flags: GroupFlags,
    script: Annotated[str, typer.Argument(help="A Python script, or with -m a module.")],
    rig: Annotated[
        str,
        typer.Option(
            "--rig",
            metavar="RIG",
            help="The GPUs to pretend: 4xA100-80GB, A100-40GB+2xT4, 2x(8xH100-SXM) for nodes, or "
            "2x16GiB for plain cards.",
        ),
    ],
    module: Annotated[bool, typer.Option("-m", help="SCRIPT names a module.")] = False,
    shape_only: Annotated[
        bool,
        typer.Option("--shape-only", help="Compute nothing and hold no data; count every byte."),
    ] = False,
    assume_values: Annotated[
        bool,
        typer.Option(
            "--assume-values",
            help="With --shape-only, go on with constants where the script needs a value.",
        ),
    ] = False,
) -> None:
    """Run an unchanged script on virtual GPUs; what follows its name is its own.

    Its arguments, standard streams and exit code are its own too.

    With any flag of `anyrig run` the script is started as by that command, once for each card, or
    for each that --device names on every node. All nodes of the rig are on this machine, so
    --rdzv-endpoint and the like need not be given and change nothing.
    """
    from ..rehearsal.program import Program
    from ..rehearsal.rehearsal import Rehearsal
    from ..virtual.rig import VirtualRig

    if not module and not Path(script).exists():
        raise typer.BadParameter(f"there is no script {script!r}", param_hint="SCRIPT")
    if assume_values and not shape_only:
        raise typer.BadParameter(
            "only a rehearsal with --shape-only lacks values", param_hint="--assume-values"
        )
    rehearsal = Rehearsal(
        Program(script, tuple(context.args), is_module=module),
        VirtualRig.parse(rig),
        shape_only=shape_only,
        assume_values=assume_values,
    )
    raise typer.Exit(_run_ranks(rehearsal, flags) if flags.given else rehearsal.run())


def _run_ranks(rehearsal: Rehearsal, flags: GroupFlags) -> int:
    """Run the program as the ranks that `flags` ask for; return the exit status of the group."""
    from ..devices.arguments import DEVICE_VARIABLE
    from ..errors import LaunchError
    from ..parallel.ranks.options import RunOptions, read_node_counts
    from ..rehearsal.placement import Placement

    rig = rehearsal.rig
    fewest, most = read_node_counts(flags.nodes or str(rig.node_count))
    if rig.node_count < fewest:
        raise LaunchError(
            f"--nnodes {flags.nodes} asks for at least {fewest} nodes, and the rig {rig} has "
            f"{rig.node_count}; name them in the rig, as in 2x(8xH100-SXM)"
        )
    placement = Placement.on(
        rig,
        flags.device or os.environ.get(DEVICE_VARIABLE) or "auto",
        flags.processes_per_device or 1,
        min(most, rig.node_count),
    )
    # The ranks meet on this machine, however many nodes they take themselves to be on.
    options = RunOptions(
        processes=placement.processes,
        max_restarts=flags.max_restarts or 0,
        timeout_seconds=flags.timeout_seconds,
        log_folder=flags.log_folder,
    )
    if options.is_one_rank:
        os.environ.update(alone() | placement.environment_of(0))
        return rehearsal.run()

    from ..parallel.ranks.launcher import run_group
    from ..virtual.build import build_extension

    build_extension()  # once, before each rank would have to
    program = rehearsal.program
    target = ["-m", program.name] if program.is_module else [program.name]
    command = ["-m", "anyrig.cli.rehearsed_rank", str(placement), *target]
    with rehearsal.of_processes():
        result = run_group(options, [*command, *program.arguments])
    return status_of(result)
