"""Several values that vary: the largest of the first, for each value of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_results import BATCH, FORMULA, question

from anyrig.errors import PlanningError
from anyrig.planning.fit_answer import FitAnswer
from anyrig.planning.fit_value import VARIABLE
from anyrig.planning.fitting import Fitting
from anyrig.planning.refused_questions import check_given
from anyrig.planning.variation import Variation
from anyrig.virtual.rig import VirtualRig


def test_the_largest_batch_is_found_for_each_length_that_doubles() -> None:
    """Memory and time of a sample are in proportion to its length."""
    lengths, rate = Variation("LENGTH", 512, 2048), Variation("--rate", 1, 1)
    fits = question("A100-80GB").for_each([rate, lengths])
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
    lengths = Variation("--seq-len", 64, 64)
    (fit,) = question("A100-80GB", lengths).for_each([Variation("BATCH", 4, 4)])
    assert fit.samples_of(64) == 4
    assert fit.describe(None) == " with BATCH=4"
    assert question(variation=lengths).samples_of(64) is None


def test_too_many_combinations_are_refused() -> None:
    a, b = Variation("--a", 1, 32), Variation("--b", 1, 32)
    with pytest.raises(PlanningError, match=r"--a=1\.\.32, --b=1\.\.32 are 36 combinations, each"):
        question().for_each([a, b])
    with pytest.raises(PlanningError, match="--batch-size varies twice"):
        question().for_each([BATCH])
