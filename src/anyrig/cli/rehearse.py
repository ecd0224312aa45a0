"""`anyrig rehearse`: run a script on virtual GPUs."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

import typer

from .group_flags import GroupFlags
from .many_ranks import RANK_COUNT, rank_0_variables, read_ranks
from .rehearsal_flags import (
    QUIET,
    RIG,
    SCRIPT,
    STEP_MARKER,
    RehearsalFlags,
    check_step_marker,
    read_rig,
)
from .report_flags import ReportFlags
from .virtual_ranks import plan_ranks, run_here, run_ranks
from .with_flags import with_flags


@with_flags
def rehearse(
    context: typer.Context,
    *,
    script: SCRIPT,
    rig: RIG = None,
    rank_count: RANK_COUNT = None,
    remedies: Annotated[
        bool,
        typer.Option(
            "--remedies",
            help="If the script runs out of memory, run it again with each remedy, without data, "
            "and report what each saves.",
        ),
    ] = False,
    # A rehearsal always does so. The flag goes with `parallel.former_options`.
    explain_oom: Annotated[bool, typer.Option("--explain-oom", hidden=True)] = False,
    step_marker: STEP_MARKER = None,
    quiet: QUIET = False,
    files: ReportFlags,
    rehearsed: RehearsalFlags,
    flags: GroupFlags,
) -> None:
    """Run an unchanged script on virtual GPUs. The words after SCRIPT are its arguments.

    The command has the script's standard streams and exit code. At the end, it prints a summary of
    times and memory to standard error.

    With a flag of `anyrig run`, the script runs as under that command: one rank for each GPU, or
    for each GPU that --device names on every node. This computer simulates all nodes of the rig,
    so --rdzv-endpoint and similar flags are not needed and have no effect.

    With --ranks, one process stands for all ranks of a program in which they are alike, so that
    thousands of them take no longer than one.

    `anyrig rehearse compare` rehearses on several rigs, and `anyrig rehearse fail` lets a rank
    fail. A script of such a name is ./compare.
    """
    whole = read_rig(rig)
    if rank_count is not None:
        whole = read_ranks(rank_count, whole, flags)
    ranks = plan_ranks(whole, flags) if flags.given else None
    if remedies and (ranks is not None or rank_count is not None):
        raise typer.BadParameter(
            "it runs the script in one process again; drop it, or the flags for ranks",
            param_hint="--remedies",
        )
    hazards = rehearsed.hazards
    reporting = files.reporting(
        quiet=quiet,
        steps=rehearsed.steps,
        step_marker=check_step_marker(step_marker, flags),
    )
    program = rehearsed.program(script, context.args, as_ranks=ranks is not None)
    rehearsal = replace(
        rehearsed.rehearsal(program, whole, reporting, lone_rank=rank_count is not None),
        remedies=remedies,
    )
    if ranks is not None:
        raise typer.Exit(run_ranks(rehearsal, *ranks, flags, hazards))
    if rank_count is not None:
        os.environ.update(rank_0_variables(whole))
    raise typer.Exit(run_here(rehearsal, hazards))
