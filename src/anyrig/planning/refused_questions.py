"""Questions that no further rehearsal would answer, and why."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import PlanningError
from ..rehearsal.comparison.rehearsed_apart import RehearsedApart
from ..virtual.rig import VirtualRig
from .candidate import Candidate, Verdict
from .fit import Fit
from .fit_answer import FitAnswer


def check_program(fit: Fit, rig: VirtualRig, candidate: Candidate, ended: RehearsedApart) -> None:
    """Refuse a program that ends without a GPU, as it does so on every rig.

    Raises:
        PlanningError: it did.
    """
    if ended.facts is None or ended.facts["devices"]:
        return
    name, error = fit.program.name, candidate.found.error or ""
    given = fit.describe(candidate.value)
    for variation in (one.variation for one in fit.settings(candidate.value)):
        if variation.is_flag and ended.status == 2 and variation.name in error:
            raise PlanningError(
                f"{name} does not take {variation.name}: {error}; name a flag of the script, "
                "or an environment variable, as in --vary BATCH=1..512"
            )
    if candidate.verdict is Verdict.FAILED:
        raise PlanningError(
            f"{name} failed{given} on {rig} before it used a GPU: {error}; "
            f"{fit.order(rig, candidate.value).command} shows all that it prints"
        )
    raise PlanningError(
        f"{name} ended{given} on {rig} and used no GPU, so that it fits any; have it move its "
        'model and its batches to "cuda"'
    )


def check_variation(fit: Fit, tried: Sequence[Candidate]) -> None:
    """Refuse a value on which neither memory nor time depends.

    Raises:
        PlanningError: both are the same at the two ends of the range.
    """
    variation = fit.variation
    if variation is None or variation.first == variation.last:
        return
    by_value = {one.value: one for one in tried}
    first, last = by_value.get(variation.first), by_value.get(variation.last)
    if first is None or last is None or first.spare_bytes is None:
        return
    if (first.spare_bytes, first.step_seconds) == (last.spare_bytes, last.step_seconds):
        raise PlanningError(
            f"{fit.program.name} takes the same memory and time with "
            f"{variation.describe(variation.first)} and {variation.describe(variation.last)}, "
            "so that there is no largest value; vary what the script reads"
        )


def check_given(before: FitAnswer, after: FitAnswer) -> None:
    """Refuse given values on which neither memory nor time depends.

    Raises:
        PlanningError: both are the same in two answers, for a rig and a value that are in both.
    """
    first, second = (
        {
            (str(row.rig), one.value): (one.spare_bytes, one.step_seconds)
            for row in answer.rows
            for one in row.tried
            if one.spare_bytes is not None
        }
        for answer in (before, after)
    )
    common = first.keys() & second.keys()
    if common and all(first[key] == second[key] for key in common):
        given = (" ".join(map(str, answer.fit.given)) for answer in (before, after))
        raise PlanningError(
            f"{after.fit.program.name} takes the same memory and time with {' and '.join(given)}; "
            "vary what the script reads"
        )
