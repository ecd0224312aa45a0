"""Which samples the ranks computed, and what is reported of them, from records made by hand."""

from __future__ import annotations

from made_records import SAME, A, B, X, Y, finding_of, judged, record, sampled, step, times

from anyrig.verification.diagnosis import judge
from anyrig.verification.records import ParameterFacts, RankRecord, StepRecord


def test_samples_that_are_repeated_or_missed() -> None:
    def text(first: StepRecord, second: StepRecord, one: StepRecord) -> str:
        cause = finding_of(judged([first, second], one)).cause
        assert cause.code == "samples"
        return cause.text

    one = sampled(X, Y, gradient=B)
    assert text(sampled(X), sampled(("x2", "y1")), one) == (
        "the ranks compute 1 sample of the batch twice and 1 sample of the batch not at all"
    )
    assert text(sampled(X), sampled(("y1",)), one).endswith(
        "compute 1 sample of the batch not at all"
    )
    assert text(sampled(X), sampled((*X, *Y)), one).endswith("compute 2 samples of the batch twice")


def test_other_samples_cannot_be_compared() -> None:
    rig, one = [sampled(X), sampled(("x3", "x4"))], sampled((*Y, "y3", "y4", "y5"), gradient=B)
    verdict = judged(rig, one)
    assert verdict.exit_code == 2
    assert "in step 1 the ranks computed 4 samples, and one device 5" in str(verdict.reason)
    other = sampled((*Y, "y3"), gradient=B, shape=(4,))
    verdict = judged(rig, other)
    assert verdict.exit_code == 1  # samples of other shapes are parts, and tell nothing


def test_a_proven_cause_counts_though_the_samples_differ() -> None:
    rig = sampled(X, gradient=times(2, A))
    verdict = judged([rig, sampled(Y, gradient=times(2, A))], sampled(("z",)))
    assert finding_of(verdict).cause.code == "factor"


def test_random_numbers_in_the_model_cannot_be_compared() -> None:
    rig = step({"a": [1.0, 7.0]})
    verdict = judged([rig, rig], step({"a": A}), draws_random_numbers=True)
    assert verdict.exit_code == 2
    assert "a differs, and the model draws random numbers" in str(verdict.reason)
    assert judged([step(SAME)] * 2, step(SAME), draws_random_numbers=True).exit_code == 0


def test_all_ranks_compute_the_same_samples() -> None:
    one = sampled(X)
    found = finding_of(judged([one, one, one], one))
    assert (found.cause.code, found.step, found.name) == ("same-samples", 1, None)
    assert found.cause.text == (
        "all 3 ranks compute the same samples in step 1, so 2 of them repeat the work of the first"
    )
    assert judged([one], one).exit_code == 0
    turned = sampled(("x2", "x1"))
    found = finding_of(judged([one, turned], one))
    assert found.cause.code == "same-samples"


def test_ranks_with_parts_of_the_model_may_compute_the_same_samples() -> None:
    both = step(SAME, forwards=[X], sample_shape=(3,))
    parts = [
        record(0, step({"a": A}, forwards=[X], sample_shape=(3,))),
        record(1, step({"b": B}, forwards=[X], sample_shape=(3,))),
    ]
    assert judge(parts, record(0, both)).exit_code == 0
    sharded = [RankRecord(**{**vars(each), "shards_data": True}) for each in parts]
    assert finding_of(judge(sharded, record(0, both))).cause.code == "same-samples"
    sharded = [sharded[0], parts[1]]
    assert judge(sharded, record(0, both)).exit_code == 0


def test_only_ranks_with_the_first_stage_must_have_samples_of_their_own() -> None:
    def rank(number: int, stage: int, *samples: tuple[str, ...]) -> RankRecord:
        name = "ab"[stage]
        facts = {name: ParameterFacts("Linear", stage=stage)}
        own = step({name: SAME[name]}, forwards=list(samples), sample_shape=(3,))
        return record(number, own, ranks=4, parameters=facts)

    whole = record(0, step(SAME, forwards=[X], sample_shape=(3,)))
    ranks = [rank(0, 0, X), rank(1, 1, X), rank(2, 0, X), rank(3, 1, X)]
    cause = finding_of(judge(ranks, whole)).cause
    assert cause.text.startswith("all 2 ranks with the first stage of the pipeline compute")
    assert judge(ranks[:2], whole).exit_code == 0
