"""The flags that `anyrig rehearse` and related commands share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from .chosen_device import named_in_errors
from .command_line import read_command
from .completion import complete_rig
from .flag_errors import refused_as
from .group_flags import GroupFlags
from .program_argument import ALLOW_MISSING_KERNELS, MODULE, NO_PYTHON
from .torchrun_flags import script_arguments
from .watch_flag import WATCH, read_watched

if TYPE_CHECKING:
    from ..hazards.program_watch import HazardOptions
    from ..programs.program import Program
    from ..rehearsal.rehearsal import Rehearsal
    from ..rehearsal.reporting import Reporting
    from ..virtual.clock_settings import ClockSettings
    from ..virtual.rig import VirtualRig

_Text = Optional[str]  # noqa: UP045 - typer reads it on Python 3.10 too
_Count = Optional[int]  # noqa: UP045

SCRIPT = Annotated[
    str,
    typer.Argument(
        metavar="SCRIPT",
        help="A Python script; with -m, a module; or a command: torchrun …, python ….",
    ),
]

RIG = Annotated[
    _Text,
    typer.Option(
        "--rig",
        metavar="RIG",
        autocompletion=complete_rig,
        help="The virtual GPUs: 4xA100-80GB, A100-40GB+2xT4, 2x(8xH100-SXM) for two nodes, or "
        "2x16GiB for plain GPUs with that memory. Required.",
    ),
]

STEP_MARKER = Annotated[
    _Text,
    typer.Option(
        "--step-marker",
        metavar="NAME",
        help="A function of the script, or Class.method, whose calls are the steps, instead of "
        "those of torch.optim.Optimizer.step.",
    ),
]

QUIET = Annotated[bool, typer.Option("--quiet", help="Print no summary at the end.")]


@dataclass(frozen=True)
class RehearsalFlags:
    """The flags of every rehearsal."""

    module: MODULE = False
    no_python: NO_PYTHON = False
    watch: WATCH = None
    steps: Annotated[
        _Count,
        typer.Option(
            "--steps", min=1, help="End the script after this many steps of its optimizer."
        ),
    ] = None
    shape_only: Annotated[
        bool,
        typer.Option(
            "--shape-only", help="Compute and store nothing, but count the bytes of all tensors."
        ),
    ] = False
    assume_values: Annotated[
        bool,
        typer.Option(
            "--assume-values",
            help="As --shape-only, and continue with a constant where the script reads a value.",
        ),
    ] = False
    without_kernels: ALLOW_MISSING_KERNELS = False
    host_launch: Annotated[
        _Text,
        typer.Option(
            "--host-launch",
            metavar="TIME",
            help="How long the host takes for a PyTorch operator with the launch of its kernel, "
            "such as 8us; 10us is assumed. `anyrig virtual measure-launch` measures it.",
        ),
    ] = None
    libraries: Annotated[
        _Text,
        typer.Option(
            "--libraries",
            metavar="VERSIONS",
            help="Time the kernels of an older PyTorch, such as torch=1.7, where measurements "
            "show that they took longer.",
        ),
    ] = None

    def read_settings(self) -> ClockSettings:
        """Return what the user says about the clock.

        Raises:
            typer.BadParameter: ``--host-launch`` is not a time, or ``--libraries`` names none.
        """
        from ..hardware import read_libraries
        from ..units import parse_seconds
        from ..virtual.clock_settings import ClockSettings

        flag, seconds = "--host-launch", None
        try:
            if self.host_launch is not None:
                seconds = parse_seconds(self.host_launch)
            flag = "--libraries"
            if self.libraries is not None:
                read_libraries(self.libraries)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=flag) from None
        return ClockSettings(seconds, self.libraries)

    @property
    def hazards(self) -> HazardOptions | None:
        """How to watch for hazards; None not to.

        Raises:
            typer.BadParameter: ``--watch`` has an unknown word.
        """
        return read_watched(self.watch).hazards

    def program(self, script: str, words: Sequence[str], *, as_ranks: bool) -> Program:
        """Return the program that `script` and the words after it name.

        As ranks, it gets its words as from torchrun, which drops a leading ``--``; else as from
        ``python``.

        Raises:
            typer.BadParameter: there is no such program, or the clock's flags cannot be read.
        """
        self.read_settings()  # refuse these flags before a program is looked for
        arguments = script_arguments(words) if as_ranks else words
        return read_command(
            [script, *arguments], is_module=self.module, is_python=not self.no_python
        )

    def rehearsal(
        self, program: Program, rig: VirtualRig, reporting: Reporting, *, lone_rank: bool = False
    ) -> Rehearsal:
        """Return the rehearsal of a program. A lone rank has no data."""
        from ..rehearsal.rehearsal import Rehearsal

        return Rehearsal(
            program,
            rig,
            shape_only=self.shape_only or self.assume_values or lone_rank,
            assume_values=self.assume_values,
            reporting=reporting,
            lone_rank=lone_rank,
            without_kernels=self.without_kernels,
            settings=self.read_settings(),
        )


def read_rig(text: str | None) -> VirtualRig:
    """Return the rig of ``--rig``.

    Raises:
        typer.BadParameter: the flag is missing.
        DeviceTextError: `text` does not name a rig.
        UnknownHardwareError: there is no such GPU.
    """
    from ..virtual.rig import VirtualRig

    if text is None:
        raise typer.BadParameter("no rig is given; write --rig 4xA100-80GB", param_hint="--rig")
    with named_in_errors("--rig"):
        return VirtualRig.parse(text)


def check_step_marker(name: str | None, flags: GroupFlags) -> str | None:
    """Return the name of a step marker, after checking that it can be used.

    Raises:
        typer.BadParameter: no function can have this name, or `flags` ask for ranks.
    """
    from ..rehearsal.step_marker import check_name

    if name is None:
        return None
    with refused_as("--step-marker"):
        check_name(name)
    if flags.given:
        raise typer.BadParameter(
            "it marks a function of a script in one process; drop it, or the flags for ranks",
            param_hint="--step-marker",
        )
    return name
