"""`anyrig verify`: does a script train on a rig as on one GPU, and if not, why."""

from __future__ import annotations

import json as json_module
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from .command_line import read_command
from .group_flags import GroupFlags
from .program_argument import ALLOW_MISSING_KERNELS, MODULE, NO_PYTHON, rank_words
from .rehearsal_flags import RIG, SCRIPT, read_rig
from .report_flags import JSON, checked_file
from .run import single_rank_variables
from .torchrun_flags import script_arguments
from .virtual_ranks import plan_ranks, rehearsed_rank_words
from .with_flags import with_flags

if TYPE_CHECKING:
    from ..processes.options import RunOptions
    from ..rehearsal.placement import Placement
    from ..rehearsal.rehearsal import Rehearsal
    from ..verification.script_runs import Ended

_NO_ARGUMENTS = "(those after SCRIPT)"


@with_flags
def verify(
    context: typer.Context,
    *,
    script: SCRIPT,
    rig: RIG = None,
    module: MODULE = False,
    no_python: NO_PYTHON = False,
    steps: Annotated[
        int,
        typer.Option("--steps", min=1, max=1000, help="How many optimizer steps to compare."),
    ] = 3,
    single_arguments: Annotated[
        str,
        typer.Option(
            "--single-arguments",
            metavar="WORDS",
            help="The script's arguments in the run on one GPU, as one word of the shell, such as "
            '"--batch-size 32".',
        ),
    ] = _NO_ARGUMENTS,
    json: JSON = None,
    without_kernels: ALLOW_MISSING_KERNELS = False,
    flags: GroupFlags,
) -> None:
    """Compare a script's training steps on a virtual rig with those on one GPU.

    Runs the unchanged script on the rig and on its first GPU alone, with the same samples, initial
    values and random numbers, in float64 if the script permits, and without dropout. Compares
    gradients and parameters after each step of an optimizer. Exit status 0: the same; 1: not the
    same, with the first tensor that differs and the cause; 2: could not be compared, with the
    reason.

    With a flag of `anyrig run`, the script runs as under that command: one rank for each GPU.
    Otherwise it runs as under python, and may use all GPUs or start ranks itself.
    """
    from ..rehearsal.rehearsal import Rehearsal
    from ..rehearsal.reporting import write_text
    from ..verification.script_runs import ScriptRuns
    from ..virtual.rig import VirtualRig

    whole = read_rig(rig)
    one = VirtualRig((replace(whole.devices[0], node=0),))
    ranks = plan_ranks(whole, flags) if flags.given else None
    file = checked_file("--json", json)
    words = script_arguments(context.args) if flags.given else context.args
    one_words = (
        words
        if single_arguments == _NO_ARGUMENTS
        else split_words(single_arguments, "--single-arguments")
    )
    program = read_command([script, *words], is_module=module, is_python=not no_python)
    alone = replace(program, arguments=tuple(one_words))
    environment = {} if ranks is None else single_rank_variables()
    allows = without_kernels
    on_rig = Rehearsal(program, whole, without_kernels=allows)
    on_one = Rehearsal(alone, one, without_kernels=allows)
    runs = ScriptRuns(
        (lambda: _run_here(on_rig, {})) if ranks is None else (lambda: _run_ranks(on_rig, *ranks)),
        lambda: _run_here(on_one, environment),
        steps,
        None if ranks is None else ranks[1].processes,
    )
    verdict = runs.verify()
    typer.echo(str(verdict))
    if file is not None:
        write_text(file, json_module.dumps(verdict.as_json()) + "\n")
    raise typer.Exit(verdict.exit_code)


def split_words(text: str, flag: str) -> list[str]:
    """Return the words of the text of a flag, as a shell splits it.

    Raises:
        typer.BadParameter: a quotation mark is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text[:80]!r} cannot be split into words: {error}", param_hint=flag
        ) from None


def _run_here(rehearsal: Rehearsal, environment: dict[str, str]) -> Ended:
    """Run the program in a process of its own, as under python."""
    from ..programs.watcher import variables_of
    from ..rehearsal.out_of_memory import OutOfMemoryWatch
    from ..verification.script_runs import Ended

    program = rehearsal.program
    target = rank_words(program.name, is_module=program.is_module)
    environment = environment | variables_of([OutOfMemoryWatch.order()])
    command = [sys.executable, "-m", "anyrig.cli.rank", *target, *program.arguments]
    with rehearsal.of_processes():
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    return Ended(done.returncode, done.stdout)


def _run_ranks(rehearsal: Rehearsal, placement: Placement, options: RunOptions) -> Ended:
    """Run the program in every rank of a group, whose output goes to log files only."""
    from ..processes.launcher import run_group
    from ..verification.script_runs import Ended
    from ..virtual.build import build_extension

    build_extension()  # once, before the ranks would each wait for the build
    if options.is_one_rank:
        return _run_here(rehearsal, single_rank_variables() | placement.environment_of(0))
    command = rehearsed_rank_words(placement, rehearsal.program)
    streams = [
        (rank, stream) for rank in range(options.processes) for stream in ("stdout", "stderr")
    ]
    with rehearsal.of_processes():
        result = run_group(replace(options, hidden_streams=frozenset(streams)), command)
    return Ended(result.exit_code, "" if result.failure is None else str(result.failure))
