"""The main module of each rank of `anyrig run`: ``python -m anyrig.cli.rank [-m] script args…``.

Runs the script as the interpreter would. In addition, a rank that is stopped writes its stack, an
out-of-memory error is explained, and the process cannot hang after the script has ended. A first
argument ``--explain-oom`` tracks memory for the explanation; the environment variable
``ANYRIG_HAZARDS`` asks for hazards. ``--no-python`` before a program's
name replaces this process with that program.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ..processes.places import write_stack_on_request
from ..processes.rank_end import note_exception
from ..processes.time_limit import set_time_limit
from ..processes.torch_faults import drop_rank_prefix, end_rank, hold_destroyed_groups
from ..processes.whole_lines import write_whole_lines
from ..rehearsal.measured.measured_process import MeasuredProcess
from ..rehearsal.measured.options import MeasureOptions
from ..rehearsal.out_of_memory import OutOfMemoryWatch
from ..rehearsal.program import Program
from ..verification.hazards.program_watch import HazardOptions, ProgramWatch
from ..virtual.torch_import import collect_nothing_in_imports, when_torch_is_imported

# The first argument, if memory is to be tracked.
EXPLAIN_OOM = "--explain-oom"


def main(*, on_virtual_gpus: bool = False) -> NoReturn:
    """Run the program that the arguments name, and exit with its status."""
    arguments = sys.argv[1:]
    tracks = arguments[0] == EXPLAIN_OOM
    if tracks:
        del arguments[0]
    if arguments[0] == "--no-python":
        os.execvp(arguments[1], arguments[1:])  # noqa: S606 - no shell is the point
    is_module = arguments[0] == "-m"
    name, *rest = arguments[1:] if is_module else arguments
    write_whole_lines()
    drop_rank_prefix()
    write_stack_on_request()
    collect_nothing_in_imports()
    when_torch_is_imported(_prepare_torch)
    options = HazardOptions.of_environment()
    hazards = None if options is None else ProgramWatch(options)
    if hazards is not None:
        when_torch_is_imported(hazards.begin)
    to_measure = MeasureOptions.of_environment()
    measured = None if to_measure is None else MeasuredProcess(to_measure)
    if measured is not None:
        when_torch_is_imported(measured.begin)
    watch = OutOfMemoryWatch(tracks=tracks, on_virtual_gpus=on_virtual_gpus)

    def explain(error: BaseException) -> str | None:
        if measured is not None:
            measured.note_error(error)
        explanation = watch.explain(error)
        # The launcher prints the explanation of the rank that caused the failure, and no other.
        return None if note_exception(error, explanation) else explanation

    program = Program(name, tuple(rest), is_module=is_module)
    status = program.run(explain)
    if measured is not None:
        measured.finish(program, status)
    end_rank(status if hazards is None else hazards.finish(status))


def _prepare_torch() -> None:
    hold_destroyed_groups()
    set_time_limit()


if __name__ == "__main__":
    main()
