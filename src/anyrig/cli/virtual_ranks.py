"""The ranks of a script on virtual GPUs: planned from a command's flags, and run."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from .chosen_device import chosen_device, named_in_errors
from .group_end import account_for_fault, error_of_group
from .group_flags import GroupFlags
from .program_argument import rank_words
from .run import single_rank_variables, status_of
from .torchrun_flags import count_ranks, hidden_streams, run_options

if TYPE_CHECKING:
    from ..hazards.program_watch import HazardOptions
    from ..processes.options import RunOptions
    from ..programs.program import Program
    from ..rehearsal.failing.fault import Fault
    from ..rehearsal.placement import Placement
    from ..rehearsal.rehearsal import Rehearsal
    from ..virtual.rig import VirtualRig


def plan_ranks(rig: VirtualRig, flags: GroupFlags) -> tuple[Placement, RunOptions]:
    """Return the placement of the ranks that `flags` ask for, and the options of their group."""
    from ..errors import GroupOptionError
    from ..processes.options import read_node_counts
    from ..rehearsal.placement import Placement

    nodes = flags.nodes
    if nodes is None:
        nodes = "1" if flags.standalone else str(rig.node_count)
    fewest, most = read_node_counts(nodes)
    if rig.node_count < fewest:
        raise GroupOptionError(
            f"--nnodes {nodes} needs at least {fewest} nodes, and the rig {rig} has "
            f"{rig.node_count}; give the rig more nodes, as in 2x(8xH100-SXM)"
        )
    source, device = chosen_device(flags.device)
    with named_in_errors(source):
        placement = Placement.on(
            rig,
            "auto" if device is None else device,
            partial(count_ranks, flags),
            min(most, rig.node_count),
        )
    endpoint = flags.rdzv_endpoint
    if endpoint is None and flags.master_address is None and most > 1:
        endpoint = "node0:29400"  # of a single node, it would be a wish for this port
    elif endpoint == "localhost:0":  # valid here for several nodes too: all are on this computer
        endpoint = "localhost"
    options = run_options(replace(flags, nodes=nodes, rdzv_endpoint=endpoint), placement.processes)
    hidden = hidden_streams(flags, placement.processes)
    # One launcher starts the ranks of all virtual nodes.
    return placement, replace(
        options,
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


def run_here(rehearsal: Rehearsal, hazards: HazardOptions | None) -> int:
    """Run the program in this process, and return the exit status."""
    from ..hazards.program_watch import ProgramWatch

    if hazards is None:
        return rehearsal.run()
    watch = ProgramWatch(hazards)
    status = replace(rehearsal, when_installed=watch.begin).run()
    return watch.finish(rehearsal.program, status)


def run_ranks(
    rehearsal: Rehearsal,
    placement: Placement,
    options: RunOptions,
    flags: GroupFlags,
    hazards: HazardOptions | None,
    fault: Fault | None = None,
) -> int:
    """Run the program in every rank, one of which may fail; return the group's exit status."""
    role = {} if flags.role is None else {"ROLE_NAME": flags.role}
    if options.is_one_rank:
        variables = single_rank_variables(options.master_port)
        os.environ.update(variables | placement.environment_of(0) | role)
        return run_here(rehearsal, hazards)

    from ..hazards.program_watch import watched_ranks
    from ..processes.launcher import run_group
    from ..programs.watcher import variables_of
    from ..rehearsal.failing.watched_fault import WatchedFault
    from ..rehearsal.out_of_memory import OutOfMemoryWatch
    from ..rehearsal.rehearsal import RanksEnd
    from ..virtual.build import build_extension
    from ..virtual.build_choice import check_build

    # Once, before each rank would refuse the rig, or wait for the build.
    check_build(rehearsal.rig, without_kernels=rehearsal.without_kernels)
    build_extension()
    words = rehearsed_rank_words(placement, rehearsal.program)
    with (
        rehearsal.of_ranks() as report,
        nullcontext() if fault is None else WatchedFault.of(fault) as watched,
        watched_ranks(hazards) as (handed, report_hazards),
    ):
        explained = OutOfMemoryWatch.order(on_virtual_gpus=True)
        fails = None if watched is None else watched.order
        variables = role | variables_of([handed, explained, fails])
        folders = [] if watched is None else [watched.folder]
        result = run_group(options, words, [variables] * options.processes, folders)
        account = None if watched is None else partial(account_for_fault, watched, result, options)
        report(RanksEnd(result.exit_code, error_of_group(result), account))
        return report_hazards(status_of(result))


def rehearsed_rank_words(placement: Placement, program: Program) -> list[str]:
    """Return the words after ``python`` that run a program in a rank on virtual GPUs."""
    target = rank_words(program.name, is_module=program.is_module)
    return ["-m", "anyrig.cli.rehearsed_rank", str(placement), *target, *program.arguments]
