"""`watch_hazards`, which finds silent hazards while a block of code runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from ..errors import HazardError
from ..private_names import refuse_missing
from ..virtual.saved_values import find_saved_values
from .check import Check
from .checks.every import every_check
from .hazard import Hazard, HazardWarning
from .kernel_values import KernelValues
from .notifier import Notifier
from .ranks import RankFacts, RankWatch
from .summed_values import SummedValues
from .tensor_numbers import TensorNumbers


class Hazards(Sequence[Hazard]):
    """The hazards of a watched block, in the order in which they were noticed.

    A hazard that occurs again at the same lines counts once.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], Hazard] = {}
        self.facts = RankFacts()

    def add(self, hazard: Hazard) -> bool:
        """Add a hazard; return whether it is a new one."""
        key = (hazard.kind, hazard.places)
        is_new = key not in self._found
        self._found.setdefault(key, hazard)
        return is_new

    def __getitem__(self, index: Any) -> Any:
        return list(self._found.values())[index]

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Hazard]:
        return iter(list(self._found.values()))

    def __str__(self) -> str:
        return "\n".join(map(str, self)) if self else "no hazards found"


def watch_hazards(
    *, raise_errors: bool = False, sums: bool = False, warn: bool = True
) -> HazardWatch:
    """Find silent hazards while a block of code runs.

    ::

        with anyrig.hazards.watch_hazards() as hazards:
            train(model, loader)
        print(hazards)

    A hazard is a mistake that raises no error, such as a write through `.data` to a value that the
    backward pass needs. Saved values are watched on virtual GPUs, in every thread. Some hazards are
    known only at the end of the block. The numbers that the program computes stay the same.

    Args:
        raise_errors: raise a `HazardError` at the first hazard, where it is noticed.
        sums: watch saved values on the CPU and on real GPUs too, in this thread, by sums of their
            bytes. This reads every saved value twice and follows every operator.
        warn: warn of each hazard where it is noticed, unless errors are raised.

    Raises:
        HazardError: another block is being watched.
    """
    return HazardWatch(raise_errors=raise_errors, sums=sums, warn=warn)


class HazardWatch:
    """The context manager that `watch_hazards` returns."""

    def __init__(self, *, raise_errors: bool, sums: bool, warn: bool) -> None:
        self._raises, self._warns = raise_errors, warn
        self._hazards = Hazards()
        self._ranks = RankWatch()
        self._numbers = TensorNumbers()
        self._checks: list[Check] = [*every_check(self._report, self._numbers), self._ranks]
        saved = find_saved_values()
        if saved is not None:
            self._checks.append(KernelValues(saved, self._report))
        if sums:
            self._checks.append(SummedValues(self._report))
        self._notifier = Notifier(self._checks)

    def __enter__(self) -> Hazards:
        refuse_missing("hazards")
        if Notifier.is_running():
            raise HazardError(
                "hazards are being watched already: by another block, or by --watch hazards; end "
                "that block first"
            )
        self._notifier.start()
        self._numbers.start(self._notifier.replacements)
        for check in self._checks:
            check.start(self._notifier.replacements)
        return self._hazards

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for check in reversed(self._checks):
            check.stop()
        self._notifier.stop()
        self._hazards.facts = self._ranks.facts()
        if error is None or isinstance(error, SystemExit):
            for check in self._checks:
                check.end()

    def _report(self, hazard: Hazard) -> None:
        if not self._hazards.add(hazard):
            return
        if self._raises:
            raise HazardError(str(hazard))
        if self._warns:
            last = hazard.places[-1] if hazard.places else None
            warnings.warn_explicit(
                str(hazard),
                HazardWarning,
                filename=(last and last.file) or "<unknown>",
                lineno=last.number if last is not None else 0,
            )
