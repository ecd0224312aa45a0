"""What `anyrig run` starts for each rank: ``python -m anyrig.cli.rank [-m] script args…``.

The script runs as the interpreter would run it. Beside that, a rank that is stopped writes where it
was, and one whose script has ended always ends.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ..parallel.ranks.ending import end_process
from ..parallel.ranks.places import write_place_when_stopped
from ..parallel.ranks.time_limit import TIME_LIMIT_VARIABLE, set_time_limit
from ..rehearsal.program import Program
from ..virtual.torch_import import when_torch_is_imported


def main() -> NoReturn:
    """Run the program that the arguments name, and end this process with its status."""
    arguments = sys.argv[1:]
    is_module = arguments[0] == "-m"
    name, *rest = arguments[1:] if is_module else arguments
    write_place_when_stopped()
    if TIME_LIMIT_VARIABLE in os.environ:
        when_torch_is_imported(set_time_limit)
    end_process(Program(name, tuple(rest), is_module=is_module).run())


if __name__ == "__main__":
    main()
