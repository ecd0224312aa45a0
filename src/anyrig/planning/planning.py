"""`Planning`: the search for the best plan of a program on a rig."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from ..errors import PlanningError
from ..programs.program import Program
from ..rehearsal.comparison.prices import Prices
from ..virtual.rig import VirtualRig
from .answering import Question, Questions, answer_all
from .arrangement import PIPELINE, Arrangement
from .candidate import Verdict
from .fit import STEPS
from .kept_results import KeptResults
from .plan_search import PlanSearch
from .rehearsed_value import Order
from .tried import Tried


@dataclass(frozen=True)
class Planning:
    """The question of the best plan.

    Attributes:
        program: the program, whose `anyrig.spread` is given no plan.
        search: what to rehearse next, and what was found.
        prices: the prices of GPUs; None for none.
        processes: how many rehearsals run at a time.
        own_precision: the search in the program's own precision, if this one is in another.
    """

    program: Program
    search: PlanSearch
    prices: Prices | None
    processes: int = 1
    own_precision: PlanSearch | None = None

    def recall(self, results: KeptResults) -> None:
        """Take all results of earlier runs, so that the same question asks for nothing more."""
        for arrangement in self.search.arrangements:
            ended = results.find(self.order(arrangement))
            if ended is not None:
                self.search.note(Tried.of(self.search.rig, arrangement, ended, self.prices))

    def run(self, results: KeptResults, note: Callable[[Arrangement], object]) -> None:
        """Rehearse until no plan is worth it. `self.search` has what was found.

        Args:
            results: results of earlier runs.
            note: called with each plan before its rehearsal.

        Raises:
            PlanningError: the program fails with every plan, or takes as long and as much memory
                with plans of two kinds, or in two precisions, and so follows none.
            KeyboardInterrupt: this process was interrupted.
        """
        answer_all([self._questions(note) for _ in range(self.processes)], results, self.processes)
        if not any(one.candidate.fits for one in self.search.tried):
            raise PlanningError(self._why_nothing_fits())

    def order(self, arrangement: Arrangement) -> Order:
        """Return the order to rehearse an arrangement."""
        program = asdict(self.program)
        rig, program["arguments"] = self.search.rig, list(self.program.arguments)
        is_equal = len({device.key for device in rig.devices}) == 1
        are_alike = is_equal and arrangement.processes > 1 and arrangement.plan != PIPELINE
        text = str(rig)
        if are_alike:  # --rig names one of the nodes
            text = str(VirtualRig(rig.devices_of_node(0), rig.network_bytes_per_second))
        return Order(
            program,
            text,
            STEPS,
            None,
            arrangement.environment,
            arrangement.processes,
            are_alike,
        )

    def _questions(self, note: Callable[[Arrangement], object]) -> Questions:
        while (arrangement := self.search.next()) is not None:
            question = Question(self.order(arrangement), lambda one=arrangement: note(one))  # type: ignore[misc]
            answer = yield question
            tried = Tried.of(self.search.rig, arrangement, answer.ended, self.prices)
            self.search.note(tried)
            same = _alike(self.search.tried)
            if same:
                raise PlanningError(
                    f"{self.program.name} takes the same time and memory with "
                    f"{' and '.join(map(str, same))}, so that it does not follow any plan; "
                    "spread its model by anyrig.spread(model), without plan="
                )
            if self.own_precision is not None and _is_in(self.own_precision.tried, tried):
                raise PlanningError(
                    f"{self.program.name} takes the same time and memory with precision="
                    f"{arrangement.precision!r} as without, so that it has a precision of its own; "
                    "leave out --allow-precision"
                )

    def _why_nothing_fits(self) -> str:
        name, rig, tried = self.program.name, self.search.rig, self.search.tried
        judged = [one for one in tried if one.verdict is not Verdict.UNKNOWN]
        if tried and not judged:
            return (
                f"{name} could be rehearsed with none of {len(tried)} plans on {rig}: "
                f"{tried[0].candidate.found.error}; end other programs, or plan on a machine "
                "with more memory"
            )
        if not judged:
            return f"{name} runs with none of 0 plans on {rig}: nothing was rehearsed"
        # The same in each run, though rehearsals end in another order.
        first = min(judged, key=lambda one: self.search.arrangements.index(one.arrangement))
        error = first.candidate.found.error or "no error"
        return (
            f"{name} runs with none of {len(judged)} plans on {rig}: {error[:1000]}; "
            f"{self.order(first.arrangement).command} shows all that it prints"
        )


def _alike(tried: Sequence[Tried]) -> list[Arrangement]:
    """Return plans of different kinds between which there is no difference, or nothing."""
    alike: dict[object, dict[str, Arrangement]] = defaultdict(dict)
    for one in tried:
        if one.candidate.fits:
            costs = one.arrangement.processes, one.seconds, one.peak_bytes
            alike[costs].setdefault(one.arrangement.plan, one.arrangement)
    return next(([*kinds.values()] for kinds in alike.values() if len(kinds) > 1), [])


def _is_in(own: Sequence[Tried], tried: Tried) -> bool:
    """Return whether a plan took the same in the program's own precision."""
    same = replace(tried.arrangement, precision=None)
    costs = (same, tried.seconds, tried.peak_bytes)
    found = [(one.arrangement, one.seconds, one.peak_bytes) for one in own if one.candidate.fits]
    return tried.candidate.fits and costs in found
