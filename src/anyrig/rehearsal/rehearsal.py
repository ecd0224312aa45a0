"""`Rehearsal`, a run of a program on a virtual rig."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import AnyrigError, RemedyError
from ..programs.program import INTERRUPTED, Program
from ..virtual.clock_settings import ClockSettings
from ..virtual.rig import VirtualRig
from ..virtual.torch_import import when_torch_is_imported, without_collections
from .facts import ProgramError, StepFacts
from .fault_facts import FaultFacts
from .out_of_memory import OutOfMemoryWatch
from .record_folder import RecordFolder
from .reporting import Reporting
from .step_marker import StepMarker
from .watching import Watch, facts_about, program_error_of

if TYPE_CHECKING:
    from ..virtual.inheritance import Inheritance
    from ..virtual.installed import Installation
    from .process_record import ProcessRecord


# How long the report waits for processes that the program leaves behind: after its end, and after
# its failure, which may let them wait for ever.
_MOST_SECONDS = 30.0
_LEAST_SECONDS = 2.0


@dataclass(frozen=True)
class RanksEnd:
    """How the ranks of a rehearsal ended.

    Attributes:
        status: the exit status of the group.
        error: the exception of the rank that caused a failure; None if there was none.
        account: returns what happened after an injected failure, given the steps of the ranks;
            None without such a failure.
    """

    status: int
    error: ProgramError | None = None
    account: Callable[[Sequence[StepFacts]], FaultFacts] | None = None


@dataclass(frozen=True)
class Rehearsal:
    """An unchanged program and the virtual rig on which it runs.

    Attributes:
        program: the program.
        rig: the GPUs that the program sees.
        shape_only: keep no data and compute nothing; bytes, shapes and errors stay the same.
        assume_values: with `shape_only`, continue with a constant where the program needs a value
            that was never computed, instead of raising an error.
        remedies: after an out-of-memory error, run the program again with each remedy.
        reporting: what to report at the end.
        lone_rank: run the program as rank 0 of a group with one rank per GPU of the rig, without
            the other ranks; the environment variables must say so.
        without_kernels: accept GPUs for which this PyTorch has no kernels.
        settings: what the user says about the clock.
        when_installed: called once the program has imported torch and the GPUs are there; not in
            other processes that the program starts.

    Raises:
        ValueError: `assume_values` is set without `shape_only`.
    """

    program: Program
    rig: VirtualRig
    shape_only: bool = False
    assume_values: bool = False
    remedies: bool = False
    reporting: Reporting = field(default_factory=Reporting)
    lone_rank: bool = False
    without_kernels: bool = False
    settings: ClockSettings = field(default_factory=ClockSettings)
    when_installed: Callable[[], None] | None = None

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
            VirtualRigError: the rig cannot be installed: a real GPU or another rig is present, or
                this PyTorch has no kernels for a GPU of the rig.
            ReportError: the script has no function with the name of the step marker, or a file
                cannot be written.
        """
        from ..virtual.installed import install

        environment = dict(os.environ)
        function = self.reporting.step_marker
        watching = Watch(self.reporting.steps, follows_optimizers=function is None)
        marker = None if function is None else StepMarker(function, watching.end_step)
        if marker is not None:
            self.program.check_marker(marker)
        refusals: list[AnyrigError] = []

        def install_rig() -> None:
            try:
                install(
                    self.rig,
                    shape_only=self.shape_only,
                    assume_values=self.assume_values,
                    lone_rank=self.lone_rank,
                    without_kernels=self.without_kernels,
                    **vars(self.settings),
                )
            except AnyrigError as error:
                refusals.append(error)
                raise SystemExit(error.exit_code) from None
            except KeyboardInterrupt:  # during a build, within the program's import of torch
                raise SystemExit(INTERRUPTED) from None

        self._hand_down()  # the program may start processes without importing torch itself
        try:
            when_torch_is_imported(install_rig)
        except SystemExit:  # this process had imported torch
            if not refusals:
                raise
            raise refusals[0] from None
        if self.when_installed is not None:
            when_torch_is_imported(self.when_installed)
        # These begin after the rig is installed.
        watch = OutOfMemoryWatch(on_virtual_gpus=True)
        when_torch_is_imported(watch.begin)
        errors: list[ProgramError] = []

        def explain(error: BaseException) -> str | None:
            watching.stop()
            if (ended := program_error_of(error)) is not None:
                errors.append(ended)
            return watch.explain(error)

        if not self.reporting.is_wanted:
            status = self.program.run(explain)
        else:
            when_torch_is_imported(watching.start)
            with RecordFolder.shared(self.reporting.steps) as folder:
                status = self.program.run(explain, marker)
                watching.stop()
                if not refusals:
                    folder.await_others(_MOST_SECONDS if status == 0 else _LEAST_SECONDS)
                    with without_collections():
                        own = [] if watching.steps is None else [watching.record()]
                    records = [*own, *folder.read_all()]
                    self._report(records, status, next(iter(errors), None), is_one_process=True)
        if refusals:
            raise refusals[0]
        if self.remedies and watch.has_seen_error:
            self._report_remedies(environment)
        return status

    @without_collections()  # each would visit all objects of torch
    def _report(
        self,
        processes: Sequence[ProcessRecord],
        status: int,
        error: ProgramError | None = None,
        account: Callable[[Sequence[StepFacts]], FaultFacts] | None = None,
        *,
        is_one_process: bool = False,
    ) -> None:
        """Report what the processes that used a GPU did.

        If `is_one_process`, no launcher started ranks.
        """
        about = facts_about(self.program.name, self.program.arguments, self._installation)
        facts = replace(about, status=status, error=error)
        used = [process for process in processes if process.devices]
        if used:
            from .read_facts import read_facts
            from .unused_gpus import find_unused

            facts = read_facts(
                facts,
                self.rig,
                used,
                with_timelines=self.reporting.has_files and not self.reporting.is_brief,
                with_findings=not self.reporting.is_brief,
            )
            if is_one_process and not self.lone_rank:
                unused = find_unused(self.rig, used, os.environ)
                facts = replace(facts, unused_devices=unused)
        if account is not None:
            facts = replace(facts, fault=account(facts.steps))
        self.reporting.write(facts)

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
                remove_unless_used(Path(inherited.gpus))

    @contextmanager
    def of_ranks(self) -> Iterator[Callable[[RanksEnd], None]]:
        """Give the rig to the ranks that are started within the block.

        Yields a function to call once the ranks have ended, with how they ended: it reports what
        they did. In all else this is like `of_processes`.
        """
        with self.of_processes():
            if not self.reporting.is_wanted:
                yield lambda end: None
                return
            with RecordFolder.shared(self.reporting.steps) as folder:

                def report(end: RanksEnd) -> None:
                    folder.await_others(_MOST_SECONDS if end.status == 0 else _LEAST_SECONDS)
                    self._report(folder.read_all(), end.status, end.error, end.account)

                yield report

    @property
    def _installation(self) -> Installation:
        from ..virtual.installed import Installation

        return Installation(
            self.rig,
            self.shape_only,
            self.assume_values,
            clock=True,
            lone_rank=self.lone_rank,
            without_kernels=self.without_kernels,
            **vars(self.settings),
        )

    def _hand_down(self) -> Inheritance | None:
        from ..virtual.installed import hand_down_before_install

        return hand_down_before_install(self._installation)
