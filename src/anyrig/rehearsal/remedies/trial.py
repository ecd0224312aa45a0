"""A run of a program with a remedy, without data and on GPUs with more memory.

``python -m anyrig.rehearsal.remedies.trial`` reads lines from its standard input, each an `Order`
in JSON. For each, it forks a process that runs the program up to a point and writes an `Outcome` in
JSON to the order's file. It answers with a line that has the process's id, and with one that has
its exit status when it has ended; that is negative after a signal, as in `subprocess`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...process_end import end_process
from ...programs.program import Program
from ...virtual.installed import leave_gpus
from ...virtual.rig import VirtualRig
from ...virtual.torch_import import when_torch_is_imported, without_collections
from ..more_memory import more_bytes

if TYPE_CHECKING:
    from .calls import OutermostCalls


@dataclass(frozen=True)
class Order:
    """What a trial runs.

    Attributes:
        program: the attributes of the `Program`.
        rig: the text of the rig.
        memory_factor: the factor by which the memory of the rig's GPUs is multiplied.
        remedies: keys of `REMEDIES`; none for the unchanged program.
        environment: the environment variables to add.
        most_calls: end before the next call of an outermost module; None for no limit.
        most_steps: end after this step of an optimizer; None for no limit.
        file: where the outcome is written.
    """

    program: Mapping[str, Any]
    rig: str
    memory_factor: int
    remedies: Sequence[str]
    environment: Mapping[str, str]
    most_calls: int | None
    most_steps: int | None
    file: str


@dataclass(frozen=True)
class Outcome:
    """What a trial has found.

    Attributes:
        error: the name of the exception that ended the program; None if it ended otherwise.
        out_of_memory: whether it ran out of memory.
        calls: the calls of outermost modules that had begun.
        steps: the optimizer steps that had ended.
        allocated_bytes: the peak of each GPU's allocated bytes, by index.
        reserved_bytes: the peak of each GPU's reserved bytes, by index.
        usable_bytes: what each GPU has for tensors of this process, by index.
        seconds: when all GPUs were done, on the virtual clock.
        details: what remedies have noted, by the remedy's key.
    """

    error: str | None
    out_of_memory: bool
    calls: int
    steps: int
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]
    usable_bytes: tuple[int, ...]
    seconds: float
    details: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Outcome:
        """Return the outcome that a trial has written."""
        facts = json.loads(path.read_text())
        for name in ("allocated_bytes", "reserved_bytes", "usable_bytes"):
            facts[name] = tuple(facts[name])
        return cls(**facts)


def main() -> None:
    """Fork a trial for each order."""
    with without_collections():
        import_module("torch._dynamo")  # which an optimizer's first step imports
    gc.collect()
    gc.freeze()  # else the first collection of a trial copies the memory that the processes share
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            for stream in (0, 1):  # the program neither reads orders nor answers them
                os.dup2(os.open(os.devnull, os.O_RDWR), stream)
            run_trial(Order(**json.loads(line)))
            end_process(0, leave_gpus)
        os.write(1, f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def run_trial(order: Order) -> None:
    """Run a trial in this process."""
    os.environ.update(order.environment)
    trial = _Trial(order)
    when_torch_is_imported(trial.begin)
    Program(**{**order.program, "arguments": tuple(order.program["arguments"])}).run(trial.note)
    Path(order.file).write_text(json.dumps(asdict(trial.outcome())))


class _Trial:
    def __init__(self, order: Order) -> None:
        self._order = order
        self._error: BaseException | None = None
        self._details: dict[str, str] = {}
        self._calls: OutermostCalls | None = None

    def begin(self) -> None:
        """Install the rig, and apply the remedies. The program has just imported torch."""
        from ...virtual.installed import install
        from .calls import OutermostCalls
        from .remedy import REMEDIES

        order = self._order
        # Other processes would read the rig's text, which does not name the larger memory.
        rig = _with_more_memory(VirtualRig.parse(order.rig), order.memory_factor)
        install(
            rig,
            shape_only=True,
            assume_values=True,
            children=False,
            without_kernels=True,  # or the rehearsal before the trials had been refused
        )
        self._calls = OutermostCalls(order.most_calls, order.most_steps)
        for name in order.remedies:
            REMEDIES[name].apply(self._calls, partial(self._details.setdefault, name))

    def note(self, error: BaseException) -> None:
        """Note the exception that ends the program."""
        self._error = error

    def outcome(self) -> Outcome:
        """Return what has been found so far."""
        import torch

        from ...virtual.clock_reading import clock
        from .calls import Enough

        error = self._error
        ended = error is None or isinstance(error, (Enough, SystemExit))
        devices = range(torch.cuda.device_count())
        return Outcome(
            None if ended else f"{type(error).__name__}: {error}",
            isinstance(error, torch.OutOfMemoryError),
            self._calls.calls if self._calls else 0,
            self._calls.steps if self._calls else 0,
            tuple(map(torch.cuda.max_memory_allocated, devices)),
            tuple(map(torch.cuda.max_memory_reserved, devices)),
            tuple(
                torch.cuda.mem_get_info(index)[0] + torch.cuda.memory_reserved(index)
                for index in devices
            ),
            clock().done_seconds,
            self._details,
        )


def _with_more_memory(rig: VirtualRig, factor: int) -> VirtualRig:
    devices = tuple(
        replace(each, memory_bytes=more_bytes(each.memory_bytes, factor)) for each in rig.devices
    )
    return replace(rig, devices=devices)


if __name__ == "__main__":
    main()
