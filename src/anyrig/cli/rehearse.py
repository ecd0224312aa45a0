"""`anyrig rehearse`: a script on GPUs that are not there."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from .chosen_device import chosen_device, named_in_errors
from .command_line import read_command
from .group_flags import GroupFlags, with_group_flags
from .program_argument import MODULE, NO_PYTHON
from .run import alone, status_of
from .torchrun_flags import count_ranks, hidden_streams, run_options, script_arguments

if TYPE_CHECKING:
    from ..processes.options import RunOptions
    from ..rehearsal.placement import Placement
    from ..rehearsal.rehearsal import Rehearsal
    from ..virtual.rig import VirtualRig


@with_group_flags
def rehearse(
    context: typer.Context,
    flags: GroupFlags,
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT",
            help="A Python script, or with -m a module; or a command: torchrun …, python ….",
        ),
    ],
    rig: Annotated[
        str,
        typer.Option(
            "--rig",
            metavar="RIG",
            help="The GPUs to pretend: 4xA100-80GB, A100-40GB+2xT4, 2x(8xH100-SXM) for nodes, or "
            "2x16GiB for plain GPUs.",
        ),
    ],
    module: MODULE = False,
    no_python: NO_PYTHON = False,
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

    With any flag of `anyrig run` the script is started as by that command, once for each GPU, or
    for each that --device names on every node. All nodes of the rig are on this machine, so
    --rdzv-endpoint and the like need not be given and change nothing.
    """
    from ..rehearsal.rehearsal import Rehearsal
    from ..virtual.rig import VirtualRig

    if assume_values and not shape_only:
        raise typer.BadParameter(
            "only a rehearsal with --shape-only lacks values", param_hint="--assume-values"
        )
    with named_in_errors("--rig"):
        virtual_rig = VirtualRig.parse(rig)
    ranks = _ranks(virtual_rig, flags) if flags.given else None
    # A command other than a group's is Python's, which drops nothing.
    arguments = script_arguments(context.args) if flags.given else context.args
    rehearsal = Rehearsal(
        read_command([script, *arguments], is_module=module, is_python=not no_python),
        virtual_rig,
        shape_only=shape_only,
        assume_values=assume_values,
    )
    if ranks is None:
        raise typer.Exit(rehearsal.run())
    named = {} if flags.role is None else {"ROLE_NAME": flags.role}
    raise typer.Exit(_run_ranks(rehearsal, *ranks, named))


def _ranks(rig: VirtualRig, flags: GroupFlags) -> tuple[Placement, RunOptions]:
    """Return where the ranks that `flags` ask for are, and what else the group is to be."""
    from ..errors import GroupOptionError
    from ..processes.options import read_node_counts
    from ..rehearsal.placement import Placement

    nodes = flags.nodes
    if nodes is None:
        nodes = "1" if flags.standalone else str(rig.node_count)
    fewest, most = read_node_counts(nodes)
    if rig.node_count < fewest:
        raise GroupOptionError(
            f"--nnodes {nodes} asks for at least {fewest} nodes, and the rig {rig} has "
            f"{rig.node_count}; name them in the rig, as in 2x(8xH100-SXM)"
        )
    source, device = chosen_device(flags.device)
    with named_in_errors(source):
        placement = Placement.on(
            rig,
            "auto" if device is None else device,
            partial(count_ranks, flags),
            min(most, rig.node_count),
        )
    place = flags.rdzv_endpoint
    if place is None and flags.master_address is None:
        place = "node0:29400"
    elif place == "localhost:0":  # any port, for all nodes of the rig are on this machine
        place = "localhost"
    asked = run_options(replace(flags, nodes=nodes, rdzv_endpoint=place), placement.processes)
    hidden = hidden_streams(flags, placement.processes)
    # The ranks meet on this machine, however many nodes they take themselves to be on.
    return placement, replace(
        asked,
        nodes="1",
        rdzv_endpoint=None,
        local_address=None,
        node_rank=None,
        hidden_streams=frozenset(
            (rank, stream)
            for rank, local_rank in enumerate(placement.local_ranks)
            for stream in ("stdout", "stderr")
            if (local_rank, stream) in hidden
        ),
    )


def _run_ranks(
    rehearsal: Rehearsal, placement: Placement, options: RunOptions, named: dict[str, str]
) -> int:
    """Run the program as ranks, with the variables `named`; return the group's exit status."""
    if options.is_one_rank:
        os.environ.update(alone(options.master_port) | placement.environment_of(0) | named)
        return rehearsal.run()

    from ..processes.launcher import run_group
    from ..virtual.build import build_extension

    build_extension()  # once, before each rank would have to
    program = rehearsal.program
    target = ["-m", program.name] if program.is_module else [program.name]
    command = ["-m", "anyrig.cli.rehearsed_rank", str(placement), *target]
    with rehearsal.of_processes():
        environments = [named] * options.processes
        result = run_group(options, [*command, *program.arguments], environments)
    return status_of(result)
