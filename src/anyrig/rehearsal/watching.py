"""`watch`, which records what a block of code does on virtual GPUs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from html import escape
from importlib.metadata import version
from types import CodeType
from typing import TYPE_CHECKING

from .. import __version__
from ..errors import VirtualRigError
from ..private_names import refuse_missing
from .assumed_ranks import AssumedRanks
from .facts import Facts, ProgramError, StepFacts

if TYPE_CHECKING:
    from ..virtual.installed import Installation
    from .process_record import ProcessRecord
    from .steps import StepWatch


class Watch:
    """Records what this process does on its virtual GPUs, from `start` to `stop`."""

    def __init__(self, most_steps: int | None = None, follows_optimizers: bool = True) -> None:
        """Record nothing yet.

        Args:
            most_steps: end the program after this many steps.
            follows_optimizers: whether a step ends when an optimizer's `step` returns, and not only
                when `end_step` is called.
        """
        self._most_steps = most_steps
        self._follows_optimizers = follows_optimizers
        self._begin = self._host_begin = 0.0
        self.steps: StepWatch | None = None

    def start(self) -> None:
        """Begin to record. Imports torch.

        Raises:
            VirtualRigError: this process has no virtual rig.
        """
        refuse_missing("rehearsal")
        from torch import nn

        from ..observe.names import ModuleNames
        from ..observe.source_line import LIBRARIES
        from ..virtual import record_reading
        from ..virtual.build import load_extension
        from ..virtual.installed import installation
        from .loaded_batches import LoaderWatch
        from .steps import StepWatch

        if installation() is None:
            raise VirtualRigError(
                "this process has no virtual rig; run it under anyrig rehearse, or call "
                "anyrig.virtual.install(rig) first"
            )
        self._loaders = LoaderWatch()
        self._loaders.start()
        steps = self.steps = StepWatch(self._loaders.take, self._most_steps)
        names = ModuleNames()

        def name_module(outermost: nn.Module, module: nn.Module) -> str:
            steps.peaks.note_model(outermost)
            return names.name_within(outermost, module)

        self._begin = record_reading.done_seconds()
        self._host_begin = record_reading.host_seconds()
        self._owns_record = not load_extension().is_recording()
        if self._owns_record:
            record_reading.begin_record(LIBRARIES, nn.Module.__call__.__code__, name_module)
        self.steps.start()
        if self._follows_optimizers:
            self.steps.follow_optimizers()

    def end_step(self) -> None:
        """Note the end of a step, if `start` was called."""
        if self.steps is not None:
            self.steps.end_step()

    def stop(self) -> None:
        """Record nothing from now on."""
        from ..virtual.record_reading import end_record

        if self.steps is not None:
            self.steps.stop()
            self._loaders.stop()
            if self._owns_record:
                end_record()

    def record(self, rank: int = 0) -> ProcessRecord:
        """Return what was recorded. Call this after `start`."""
        from .process_record import record_of_process

        assert self.steps is not None
        return record_of_process(
            self._begin, self._host_begin, self.steps.ends, rank, self.steps.works
        )

    def facts(self, about: Facts) -> Facts:
        """Return `about` with what was recorded; unchanged if `start` was not called."""
        from ..virtual.installed import installation
        from .read_facts import read_facts

        installed = installation()
        if self.steps is None or installed is None:
            return about
        return read_facts(about, installed.rig, [self.record()])


class Report:
    """What a watched block did; complete once the block has ended.

    Attributes:
        facts: everything that was found.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @property
    def steps(self) -> tuple[StepFacts, ...]:
        """The steps of the block: each ends when an optimizer's `step` returns."""
        return self.facts.steps

    def peak_bytes(self, device: int) -> int:
        """Return the most memory that this process held on a device."""
        return self.facts.peak_bytes(device)

    def __str__(self) -> str:
        from .summary import describe

        return describe(self.facts)

    def _repr_html_(self) -> str:
        """Return the page of the report in a frame, as notebooks show it; before that, the text."""
        if not self.facts.devices:  # the block has not ended, or used no GPU
            return f"<pre>{escape(str(self))}</pre>"
        from .page.document import format_page

        page = escape(format_page(self.facts.as_json()))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 50em; border: 0"></iframe>'


@contextmanager
def watch() -> Iterator[Report]:
    """Record what a block does on virtual GPUs, and report it once the block has ended.

    ::

        with anyrig.rehearsal.watch() as report:
            train(model, loader, steps=3)
        assert report.steps[-1].waits == 0
        print(report)

    Under ``anyrig rehearse``, which records the whole program, this reports the block only.

    Raises:
        VirtualRigError: this process has no virtual rig.
    """
    from ..virtual.installed import installation

    watching = Watch()
    watching.start()
    installed = installation()
    assert installed is not None
    about = facts_about(sys.argv[0], sys.argv[1:], installed)
    report = Report(about)
    try:
        yield report
    except BaseException as error:
        about = replace(about, error=program_error_of(error))
        raise
    finally:
        watching.stop()
        report.facts = watching.facts(about)


def facts_about(program: str, arguments: Sequence[str], installed: Installation) -> Facts:
    """Return what is known before a program runs on an installed rig."""
    return Facts(
        program=program,
        arguments=tuple(arguments),
        rig=str(installed.rig),
        shape_only=installed.shape_only,
        torch=version("torch"),
        anyrig=__version__,
        assumed_ranks=AssumedRanks.on(installed.rig) if installed.lone_rank else None,
        clock=installed.settings,
        assume_values=installed.assume_values,
    )


def program_error_of(error: BaseException) -> ProgramError | None:
    """Return the exception that ends a program as a fact, with the innermost line of the program.

    None if it is no error: an interruption, or `sys.exit` with success.
    """
    if isinstance(error, KeyboardInterrupt):
        return None
    if not isinstance(error, SystemExit):
        return ProgramError(type(error).__name__, str(error), _line_of(error))
    if not error.code:
        return None
    return ProgramError(type(error).__name__, f"sys.exit({error.code!r})", _line_of(error))


def _line_of(error: BaseException) -> str | None:
    from .texts import name_lines

    def is_library(code: CodeType) -> bool:
        if isinstance(error, SystemExit) and code.co_filename == argparse.__file__:
            return True
        if "torch" not in sys.modules:
            return False
        from ..observe.source_line import is_library_code

        return is_library_code(code)

    line, frames = None, error.__traceback__
    while frames is not None:
        code = frames.tb_frame.f_code
        if not is_library(code):
            (line,) = name_lines([(code.co_filename, frames.tb_lineno)])
        frames = frames.tb_next
    return line
