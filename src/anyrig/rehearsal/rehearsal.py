"""`Rehearsal`, a run of a program on a virtual rig."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import AnyrigError, RemedyError
from ..virtual.rig import VirtualRig
from ..virtual.torch_import import when_torch_is_imported
from .out_of_memory import OutOfMemoryWatch
from .program import INTERRUPTED, Program

if TYPE_CHECKING:
    from ..virtual.inheritance import Inheritance


@dataclass(frozen=True)
class Rehearsal:
    """An unchanged program and the virtual rig on which it runs.

    Attributes:
        program: the program.
        rig: the GPUs that the program sees.
        shape_only: keep no data and compute nothing; bytes, shapes and errors stay the same.
        assume_values: with `shape_only`, continue with a constant where the program needs a value
            that was never computed, instead of raising an error.
        explain_oom: track memory, for the report of an out-of-memory error.
        remedies: after an out-of-memory error, run the program again with each remedy.
        times: report the virtual time at the end, and how far such times are known to be off.

    Raises:
        ValueError: `assume_values` is set without `shape_only`.
    """

    program: Program
    rig: VirtualRig
    shape_only: bool = False
    assume_values: bool = False
    explain_oom: bool = False
    remedies: bool = False
    times: bool = False

    def __post_init__(self) -> None:
        if self.assume_values and not self.shape_only:
            raise ValueError(
                "assume_values needs shape_only, because a rehearsal that computes has all values; "
                "remove assume_values or add shape_only"
            )

    def run(self) -> int:
        """Run the program in this process and return its exit status.

        The GPUs appear when the program imports torch, in this process and in every Python process
        that the program starts. All of these processes share the GPUs. Call `run` at most once.

        Raises:
            NoCompilerError: the virtual backend must be built, and there is no compiler.
            BuildError: the virtual backend cannot be built.
            VirtualRigError: the rig cannot be installed: a real GPU or another rig is present.
        """
        from ..virtual.installed import install

        environment = dict(os.environ)
        refusals: list[AnyrigError] = []

        def install_rig() -> None:
            try:
                install(self.rig, shape_only=self.shape_only, assume_values=self.assume_values)
            except AnyrigError as error:
                refusals.append(error)
                raise SystemExit(error.exit_code) from None
            except KeyboardInterrupt:  # during a build, within the program's import of torch
                raise SystemExit(INTERRUPTED) from None

        self._hand_down()  # the program may start processes without importing torch itself
        when_torch_is_imported(install_rig)
        watch = OutOfMemoryWatch(tracks=self.explain_oom)  # begins after the rig is installed
        status = self.program.run(watch.explain)
        if refusals:
            raise refusals[0]
        if self.times:
            self._report_times()
        if self.remedies and watch.has_seen_error:
            self._report_remedies(environment)
        return status

    def _report_times(self) -> None:
        from ..virtual.clock_reading import clock
        from ..virtual.installed import installation
        from .times import describe_times

        if installation() is None:
            text = "virtual time: none, because the program did not import torch"
        else:
            text = describe_times(clock(), self.rig)
        sys.stderr.write(f"{text}\n")

    def _report_remedies(self, environment: Mapping[str, str]) -> None:
        from .remedies.rehearsed import rehearse_remedies

        try:
            text = str(rehearse_remedies(self.program, self.rig, environment))
        except RemedyError as error:  # the program's own error and exit status remain
            text = f"anyrig: {error}"
        sys.stderr.write(f"{text}\n")

    @contextmanager
    def of_processes(self) -> Iterator[None]:
        """Give the rig to the Python processes started within the block, but not to this process.

        The processes must end before the block does: its end removes the folder through which they
        shared the GPUs.
        """
        from ..virtual.rehearsal_folder import remove_unless_used

        inherited = self._hand_down()
        try:
            yield
        finally:
            if inherited is not None:
                remove_unless_used(Path(inherited.cards))

    def _hand_down(self) -> Inheritance | None:
        from ..virtual.installed import Installation, hand_down_before_install

        return hand_down_before_install(
            Installation(self.rig, self.shape_only, self.assume_values, clock=True)
        )
