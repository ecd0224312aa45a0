"""Several values that vary: the largest of the first, for each value of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_results import FORMULA, question

from anyrig.errors import PlanningError
from anyrig.planning.fit import Fit
from anyrig.planning.fit_answer import FitAnswer
from anyrig.planning.fit_value import VARIABLE
from anyrig.planning.fitting import Fitting
from anyrig.planning.refused_questions import check_given
from anyrig.planning.variation import read_variations
from anyrig.virtual.rig import VirtualRig


def questions(*texts: str) -> list[Fit]:
    variation, combinations = read_variations(texts)
    fit = question("A100-80GB", variation)
    return [replace(fit, given=given) for given in combinations]


def test_the_largest_batch_is_found_for_each_length_that_doubles() -> None:
    """Memory and time of a sample are in proportion to its length."""
    fits = questions("--batch-size=1..512", "--rate=1..1", "LENGTH=512..2048")
    assert [fit.describe(8) for fit in fits] == [
        f" with --rate=1 LENGTH={length} --batch-size=8" for length in (512, 1024, 2048)
    ]
    order = fits[1].order(VirtualRig.parse("T4"), 8)
    assert order.program["arguments"] == ["--lr", "1", "--rate=1", "--batch-size=8"]
    assert order.environment == {"LENGTH": "1024", VARIABLE: '{"LENGTH": 1024}'}
    answers = []
    for fit in fits:
        long = fit.given[1].value / 512
        formula = replace(FORMULA, each=0.5 * long, seconds=0.25 * long)
        fitting = Fitting(fit, formula, lambda rig, value: None)
        fitting.run()
        answers.append(FitAnswer(fit, fitting.rows()))
    largest = [answer.rows[0].certain for answer in answers]
    assert [found.value for found in largest if found] == [128, 64, 32]
    assert answers[2].as_json()["given"] == {"--rate": 1, "LENGTH": 2048}
    check_given(*answers[:2])
    same = replace(answers[0], fit=fits[1])
    with pytest.raises(
        PlanningError,
        match=r"the same memory and time with --rate=1 LENGTH=512 and --rate=1 LENGTH=1024",
    ):
        check_given(answers[0], same)


def test_a_given_batch_is_the_number_of_samples() -> None:
    (fit,) = questions("--seq-len=64..64", "BATCH=4..4")
    assert fit.samples_of(64) == 4
    assert fit.describe(None) == " with BATCH=4"
    assert questions("--seq-len=64..64")[0].samples_of(64) is None


def test_too_many_combinations_are_refused() -> None:
    with pytest.raises(PlanningError, match=r"--a=1\.\.32, --b=1\.\.32 are 36 combinations, each"):
        read_variations(["BATCH=1..512", "--a=1..32", "--b=1..32"])
    with pytest.raises(PlanningError, match="--batch-size varies twice"):
        read_variations(["--batch-size=1..512", "--batch-size=1..512"])
