"""The main module of one rehearsal of `anyrig fit` or `plan`: without data, with a brief report.

``python -m anyrig.planning.rehearsed_value ORDER``, where ORDER is an `Order` in JSON.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from ..errors import AnyrigError
from ..process_end import end_process, release_objects_of_program
from ..programs.program import Program
from ..rehearsal.rehearsal import Rehearsal
from ..rehearsal.reporting import Reporting
from ..virtual.rig import VirtualRig
from ..virtual.torch_import import collect_nothing_in_imports


@dataclass(frozen=True)
class Order:
    """What to rehearse.

    Attributes:
        program: the attributes of the `Program`.
        rig: the text of the rig.
        steps: end the program after this many steps of its optimizer.
        step_marker: the function of the script whose calls are steps; None for optimizers.
        environment: the environment variables to add.
        processes: the number of ranks. One process starts as with ``python``.
        are_alike: whether rank 0 stands for all ranks.
    """

    program: Mapping[str, Any]
    rig: str
    steps: int
    step_marker: str | None
    environment: Mapping[str, str]
    processes: int = 1
    are_alike: bool = False

    def make_program(self) -> Program:
        """Return the program."""
        return Program(**{**self.program, "arguments": tuple(self.program["arguments"])})

    def words(self, file: Path) -> list[str]:
        """Return the words after ``python`` of a process that writes its facts to `file`."""
        if self.processes == 1:
            return ["-m", __spec__.name, json.dumps(asdict(self)), str(file)]
        facts = ("--quiet", "--steps", str(self.steps), "--json", str(file))
        return ["-m", "anyrig", *self._rehearse(*facts)]

    @property
    def command(self) -> str:
        """The command for a shell that rehearses the same, and shows what the program prints."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, "anyrig", shlex.join(self._rehearse())])

    def _rehearse(self, *flags: str) -> list[str]:
        """Return the command line of `anyrig rehearse`, with further flags."""
        program = self.make_program()
        ranks = "--ranks" if self.are_alike else "--nproc-per-node"
        return [
            *("rehearse", "--assume-values", "--rig", self.rig),
            *([] if self.processes == 1 else [ranks, str(self.processes)]),
            *([] if self.step_marker is None else ["--step-marker", self.step_marker]),
            *flags,
            *(["-m"] if program.is_module else []),
            *(program.name, *program.arguments),
        ]

    def rehearse(self, file: Path) -> int:
        """Rehearse in this process, and return the program's exit status."""
        reporting = Reporting(
            quiet=True,
            json=file,
            steps=self.steps,
            step_marker=self.step_marker,
            is_brief=True,
        )
        rehearsal = Rehearsal(
            self.make_program(),
            VirtualRig.parse(self.rig),
            shape_only=True,
            assume_values=True,
            reporting=reporting,
        )
        return rehearsal.run()


def main() -> NoReturn:
    """Rehearse what the command line says, and end this process with the program's status."""
    collect_nothing_in_imports()
    order, file = Order(**json.loads(sys.argv[1])), Path(sys.argv[2])
    try:
        status = order.rehearse(file)
    except AnyrigError as error:
        sys.stderr.write(f"anyrig: error: {error}\n")
        status = error.exit_code
    end_process(status, _release)


def _release() -> None:
    from ..virtual.installed import leave_gpus

    release_objects_of_program()
    leave_gpus()


if __name__ == "__main__":
    main()
