"""`anyrig rehearse`: run a script on virtual GPUs."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .chosen_device import named_in_errors
from .command_line import read_command
from .compare import PRICES, compare_and_exit, plan_comparison, read_rigs
from .fail import account_for_fault, read_fault
from .flag_errors import refused_as
from .group_flags import GroupFlags, with_group_flags
from .hazard_flags import FAIL_ON_HAZARDS, HAZARD_SUMS, HAZARDS, hazard_options
from .many_ranks import RANKS, rank_0_variables, read_ranks
from .program_argument import (
    ALLOW_MISSING_KERNELS,
    MODULE,
    NO_PYTHON,
    rank_words,
)
from .program_error import error_of_group
from .run import single_rank_variables, status_of
from .torchrun_flags import script_arguments
from .virtual_ranks import plan_ranks

if TYPE_CHECKING:
    from ..processes.options import RunOptions
    from ..rehearsal.failing.fault import Fault
    from ..rehearsal.failing.watched_fault import WatchedFault
    from ..rehearsal.placement import Placement
    from ..rehearsal.rehearsal import Rehearsal
    from ..verification.hazards.program_watch import HazardOptions


@with_group_flags
def rehearse(
    context: typer.Context,
    flags: GroupFlags,
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT",
            help="A Python script; with -m, a module; or a command: torchrun …, python ….",
        ),
    ],
    rig: Annotated[
        str | None,
        typer.Option(
            "--rig",
            metavar="RIG",
            help="The virtual GPUs: 4xA100-80GB, A100-40GB+2xT4, 2x(8xH100-SXM) for two nodes, or "
            "2x16GiB for plain GPUs with that memory. Required without --compare.",
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="RIG,…",
            help="Rehearse on each of these rigs, and print one table: what fits, how fast it is, "
            "and what it costs.",
        ),
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(
            "--prices",
            metavar="FILE",
            help="With --compare: a TOML file with the price of an hour of each GPU.",
        ),
    ] = None,
    module: MODULE = False,
    no_python: NO_PYTHON = False,
    world_size: Annotated[
        int | None,
        typer.Option(
            RANKS,
            metavar="N",
            help="Run rank 0 of N alone, without data, on as many nodes like --rig as that takes. "
            "All ranks are assumed to be alike, as under DDP, FSDP2 and tensor parallelism.",
        ),
    ] = None,
    fail: Annotated[
        str | None,
        typer.Option(
            "--fail",
            metavar="rank=N,step=N[,kill|slow=X|link]",
            help="Over several ranks: kill a rank in this step of its optimizer, slow its GPU down "
            "by a factor, or cut its connections, and report how the program goes on.",
        ),
    ] = None,
    explain_oom: Annotated[
        bool,
        typer.Option(
            "--explain-oom/--no-explain-oom",
            help="If the script runs out of memory, report what filled the GPU and which lines to "
            "change. This is the default.",
        ),
    ] = True,
    hazards: HAZARDS = False,
    fail_on_hazards: FAIL_ON_HAZARDS = False,
    hazard_sums: HAZARD_SUMS = False,
    remedies: Annotated[
        bool,
        typer.Option(
            "--remedies",
            help="If the script runs out of memory, run it again with each remedy, without data, "
            "and report what each saves.",
        ),
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", min=1, help="End the script after this many steps of its optimizer."
        ),
    ] = None,
    step_marker: Annotated[
        str | None,
        typer.Option(
            "--step-marker",
            metavar="NAME",
            help="A function of the script, or Class.method, whose calls are the steps, instead of "
            "those of torch.optim.Optimizer.step.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no summary at the end.")] = False,
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write all facts as one JSON object."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write the timelines, for ui.perfetto.dev or chrome://tracing.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Write a page for a browser: timelines, memory, and where each step's time goes.",
        ),
    ] = None,
    shape_only: Annotated[
        bool,
        typer.Option(
            "--shape-only", help="Compute and store nothing, but count the bytes of all tensors."
        ),
    ] = False,
    assume_values: Annotated[
        bool,
        typer.Option(
            "--assume-values",
            help="With --shape-only: continue with a constant where the script reads a value.",
        ),
    ] = False,
    without_kernels: ALLOW_MISSING_KERNELS = False,
) -> None:
    """Run an unchanged script on virtual GPUs. The words after SCRIPT are its arguments.

    The command has the script's standard streams and exit code. At the end, it prints a summary of
    times and memory to standard error.

    With a flag of `anyrig run`, the script runs as under that command: one rank for each GPU, or
    for each GPU that --device names on every node. This computer simulates all nodes of the rig,
    so --rdzv-endpoint and similar flags are not needed and have no effect.

    With --ranks, one process stands for all ranks of a program in which they are alike, so that
    thousands of them take no longer than one.
    """
    from ..rehearsal.comparison.prices import Prices
    from ..rehearsal.rehearsal import Rehearsal
    from ..rehearsal.reporting import Reporting, check_file
    from ..rehearsal.step_marker import check_name
    from ..virtual.rig import VirtualRig

    shape_only = shape_only or world_size is not None
    if assume_values and not shape_only:
        raise typer.BadParameter(
            "it needs --shape-only; other rehearsals compute all values",
            param_hint="--assume-values",
        )
    compared = None if compare is None else read_rigs(context, compare)
    if compared is not None:
        rigs = compared
    elif rig is None:
        raise typer.BadParameter(
            "no rig is given; write --rig 4xA100-80GB, or --compare 4xA100-80GB,8xL4",
            param_hint="--rig",
        )
    else:
        with named_in_errors("--rig"):
            rigs = (VirtualRig.parse(rig),)
    if world_size is not None:
        whole_rigs = [read_ranks(world_size, each, flags) for each in rigs]
        rigs = rigs if compared is not None else tuple(whole_rigs)
    known_prices = None
    if prices is not None:
        if compared is None:
            raise typer.BadParameter("it needs --compare", param_hint=PRICES)
        with refused_as(PRICES):
            known_prices = Prices.read(prices)
    all_ranks = [plan_ranks(each, flags) for each in rigs] if flags.given else None
    ranks = None if all_ranks is None else all_ranks[0]
    if fail is not None and world_size is not None:
        raise typer.BadParameter(
            f"it lets one of several ranks fail, and {RANKS} runs rank 0 alone; drop one of them",
            param_hint="--fail",
        )
    fault = None if fail is None else read_fault(fail, ranks)
    if remedies and (ranks is not None or world_size is not None):
        raise typer.BadParameter(
            "it runs the script in one process again; drop it, or the flags for ranks",
            param_hint="--remedies",
        )
    for flag, path in {"--json": json, "--trace": trace, "--report": report}.items():
        if path is not None:
            with refused_as(flag):
                check_file(path)
    if step_marker is not None:
        with refused_as("--step-marker"):
            check_name(step_marker)
    reporting = Reporting(quiet, json, trace, report, steps, step_marker)
    if ranks is not None and step_marker is not None:
        raise typer.BadParameter(
            "it marks a function of a script in one process; drop it, or the flags for ranks",
            param_hint="--step-marker",
        )
    # Without a group flag, SCRIPT runs as under python, which keeps a leading "--".
    arguments = script_arguments(context.args) if flags.given else context.args
    program = read_command([script, *arguments], is_module=module, is_python=not no_python)
    if compared is not None:
        command = (script, *context.args)
        compare_and_exit(
            plan_comparison(context, compared, known_prices, command, quiet=quiet), json
        )
    watched = hazard_options(hazards, fail_on_hazards, hazard_sums, not no_python)
    rehearsal = Rehearsal(
        program,
        rigs[0],
        shape_only=shape_only,
        assume_values=assume_values,
        explain_oom=explain_oom,
        remedies=remedies,
        reporting=reporting,
        lone_rank=world_size is not None,
        without_kernels=without_kernels,
    )
    if world_size is not None:
        os.environ.update(rank_0_variables(rigs[0]))
    if ranks is None:
        raise typer.Exit(_run_here(rehearsal, watched))
    role = {} if flags.role is None else {"ROLE_NAME": flags.role}
    raise typer.Exit(_run_ranks(rehearsal, *ranks, role, fault, watched))


def _run_here(rehearsal: Rehearsal, watched: HazardOptions | None) -> int:
    """Run the program in this process, and return the exit status."""
    from ..verification.hazards.program_watch import ProgramWatch

    if watched is None:
        return rehearsal.run()
    hazards = ProgramWatch(watched)
    return hazards.finish(replace(rehearsal, when_installed=hazards.begin).run())


def _run_ranks(
    rehearsal: Rehearsal,
    placement: Placement,
    options: RunOptions,
    role: dict[str, str],
    fault: Fault | None,
    hazards: HazardOptions | None,
) -> int:
    """Run the program in every rank; return the group's exit status.

    `role` holds the ranks' ROLE_NAME, or is empty.
    """
    if options.is_one_rank:
        variables = single_rank_variables(options.master_port)
        os.environ.update(variables | placement.environment_of(0) | role)
        return _run_here(rehearsal, hazards)

    from ..processes.launcher import run_group
    from ..rehearsal.rehearsal import RanksEnd
    from ..verification.hazards.program_watch import watched_ranks
    from ..virtual.build import build_extension
    from ..virtual.build_choice import check_build

    # Once, before each rank would refuse the rig, or wait for the build.
    check_build(rehearsal.rig, without_kernels=rehearsal.without_kernels)
    build_extension()
    program = rehearsal.program
    target = rank_words(
        program.name, is_module=program.is_module, explains_oom=rehearsal.explain_oom
    )
    command = ["-m", "anyrig.cli.rehearsed_rank", str(placement), *target]
    with (
        rehearsal.of_ranks() as report,
        _watched(fault) as watched,
        watched_ranks(hazards) as (handed, report_hazards),
    ):
        variables = role | handed | ({} if watched is None else watched.environment)
        folders = [] if watched is None else [watched.folder]
        words = [*command, *program.arguments]
        result = run_group(options, words, [variables] * options.processes, folders)
        account = None if watched is None else partial(account_for_fault, watched, result, options)
        report(RanksEnd(result.exit_code, error_of_group(result), account))
        return report_hazards(status_of(result))


def _watched(fault: Fault | None) -> AbstractContextManager[WatchedFault | None]:
    from ..rehearsal.failing.watched_fault import WatchedFault

    return nullcontext() if fault is None else WatchedFault.of(fault)
