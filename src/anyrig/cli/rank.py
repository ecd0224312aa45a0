"""The main module of each rank of `anyrig run`: ``python -m anyrig.cli.rank [-m] script args…``.

Runs the script as the interpreter would. In addition, a rank that is stopped writes its stack, the
watchers that the command has ordered watch the script, and the process cannot hang after the script
has ended. ``--no-python`` before a program's name replaces this process with that program.
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
from ..programs.program import Program
from ..programs.watcher import watchers_of_environment
from ..virtual.torch_import import collect_nothing_in_imports, when_torch_is_imported


def main() -> NoReturn:
    """Run the program that the arguments name, and exit with its status."""
    arguments = sys.argv[1:]
    if arguments[0] == "--no-python":
        os.execvp(arguments[1], arguments[1:])  # noqa: S606 - no shell is the point
    is_module = arguments[0] == "-m"
    name, *rest = arguments[1:] if is_module else arguments
    write_whole_lines()
    drop_rank_prefix()
    write_stack_on_request()
    collect_nothing_in_imports()
    when_torch_is_imported(_prepare_torch)
    watchers = watchers_of_environment()
    for watcher in watchers:
        when_torch_is_imported(watcher.begin)

    def explain(error: BaseException) -> str | None:
        texts = [watcher.explain(error) for watcher in watchers]
        explanation = next((text for text in texts if text is not None), None)
        # The launcher prints the explanation of the rank that caused the failure, and no other.
        return None if note_exception(error, explanation) else explanation

    program = Program(name, tuple(rest), is_module=is_module)
    status = program.run(explain)
    for watcher in reversed(watchers):
        status = watcher.finish(program, status)
    end_rank(status)


def _prepare_torch() -> None:
    hold_destroyed_groups()
    set_time_limit()


if __name__ == "__main__":
    main()
