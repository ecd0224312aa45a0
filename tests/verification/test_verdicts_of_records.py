"""Which difference is reported, with which cause, from records that are made by hand."""

from __future__ import annotations

import pytest
import torch
from made_records import SAME, A, B, X, Y, finding_of, judged, record, sampled, step, times

from anyrig.verification.bounds import BOUNDS, allowed, bound_of, differs, norm, norm_of_all
from anyrig.verification.diagnosis import judge
from anyrig.verification.records import NO_MODULE, LoadedBatch, ParameterFacts, StepRecord


def test_bounds_are_those_of_the_documentation() -> None:
    assert BOUNDS == {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
    assert bound_of(["float64", "bfloat16", "float16"]) == ("bfloat16", 5e-2)
    assert bound_of(["float64", "int8"]) == ("float64", 1e-9)
    assert bound_of(["int8"]) == bound_of([]) == ("float32", 1e-4)


def test_norms() -> None:
    assert norm(torch.tensor(A)) == 5
    assert norm(torch.empty(0)) == 0
    assert norm_of_all({"a": torch.tensor(A), "b": torch.tensor([12.0])}) == 13
    assert allowed(0.1, 2, torch.tensor(A), 0.0) == pytest.approx(1.0)
    assert not differs(torch.tensor([1.5]), torch.tensor([1.0]), 0.5)
    assert differs(torch.tensor([1.5]), torch.tensor([1.0]), 0.49)


@pytest.mark.parametrize(("part", "exit_code"), [(0.9e-9, 0), (1.1e-9, 1)])
def test_a_difference_up_to_the_bound_is_rounding(part: float, exit_code: int) -> None:
    other = step({"a": [3.0 + 5 * part, 4.0]}, after={"a": times(-0.1, A)})
    assert judged([other, other], step({"a": A})).exit_code == exit_code


def test_equal_runs_are_the_same() -> None:
    verdict = judged([step(SAME, [1.0]), step(SAME, [2.0])], step(SAME, [3.0]))
    assert verdict
    assert (verdict.exit_code, verdict.steps, verdict.world_size) == (0, 1, 2)
    assert (verdict.dtype, verdict.bound, verdict.notes) == ("float64", 1e-9, ())
    assert verdict.losses == ((1.5, 3.0),)
    assert judged([step(SAME, [])] * 2, step(SAME, [2.0])).losses == ((None, 2.0),)


def test_only_steps_that_all_runs_have_are_compared() -> None:
    second = step({"a": A}, before={"a": times(-0.1, A)}, after={"a": times(-0.2, A)})
    other = step({"a": B}, before={"a": times(-0.1, A)})
    ranks = [record(0, step({"a": A}), second), record(1, step({"a": A}))]
    verdict = judge(ranks, record(0, step({"a": A}), other))
    assert (verdict.exit_code, verdict.steps) == (0, 1)
    assert verdict.notes == (
        "the runs have different numbers of steps; the first ones were compared",
    )
    verdict = judge([record(1, step({"a": A}), second)] * 2, record(0, step({"a": A}), other))
    assert (verdict.exit_code, finding_of(verdict).step, verdict.steps) == (1, 2, 2)


def test_dropout_is_noted() -> None:
    (note,) = judged([step(SAME)] * 2, step(SAME), has_dropout=True).notes
    assert note == "dropout was off in both runs; only its random states were compared"


BATCH, END = LoadedBatch(0, 0, 0, torch.zeros(2)), LoadedBatch(0, 1, 1, None)


@pytest.mark.parametrize(
    ("losses", "batches", "is_noted"),
    [
        ([1.0, 1.0], (BATCH,), True),
        ([1.0, 1.0], (BATCH, END), False),
        ([1.0, 1.0], (), False),
        ([1.0], (BATCH,), False),
    ],
    ids=["accumulation", "an epoch's end", "no loader", "one micro-batch"],
)
def test_accumulation_within_an_epoch_is_noted(
    losses: list[float], batches: tuple[LoadedBatch, ...], is_noted: bool
) -> None:
    verdict = judged([step(SAME, losses)] * 2, step(SAME, losses), batches=batches)
    assert verdict.exit_code == 0
    assert any("no epoch ended within these steps" in note for note in verdict.notes) is is_noted


def test_gradients_are_compared_before_parameters_and_the_last_module_first() -> None:
    rig = step({"a": times(2, A), "b": times(2, B), "c": A}, after={"c": B})
    found = finding_of(judged([rig, rig], step({"a": A, "b": B, "c": A})))
    assert (found.kind, found.name, found.module, found.others) == ("gradient", "b", "Linear", 1)
    assert (found.line, found.backward_line, found.step) == ("train.py:5", "train.py:9", 1)
    assert found.error == pytest.approx(1.0)


def test_a_parameter_that_differs_has_the_line_of_the_step() -> None:
    rig = step({"a": A}, after={"a": B})
    found = finding_of(judged([rig, rig], step({"a": A})))
    assert (found.kind, found.name, found.line) == ("parameter", "a", "train.py:10")


def test_the_worst_rank_gives_the_error() -> None:
    found = finding_of(judged([step({"a": A}), step({"a": times(3, A)})], step({"a": A})))
    assert found.error == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("factor", "ranks", "batches", "text"),
    [
        (4, 4, 1, "\u00d74 what one device computes: summed over the 4 ranks, not averaged"),
        (0.25, 4, 1, "\u00d71/4 what one device computes: divided by the 4 ranks once too often"),
        (3, 4, 3, "summed over the 3 micro-batches, not averaged"),
        (1 / 3, 4, 3, "divided by the 3 micro-batches once too often"),
        (2, 4, 2, "summed over the 2 micro-batches, not averaged"),
        (2, 4, 1, "summed over groups of 2 of the 4 ranks, not averaged"),
        (0.5, 4, 1, "divided by a group of 2 of the 4 ranks once too often"),
        (3, 4, 1, "clipped by another norm, or a weight of the loss depends on the ranks"),
        (65536, 2, 1, "the gradients still have the scale of a gradient scaler"),
        (128, 2, 1, "the gradients still have the scale of a gradient scaler"),
        (64, 2, 1, "clipped by another norm"),
        (200, 2, 1, "clipped by another norm"),
        (1.7, 2, 1, "all gradients are \u00d71.7 what one device computes: clipped"),
    ],
)
def test_what_a_factor_means(factor: float, ranks: int, batches: int, text: str) -> None:
    other = step({"a": times(factor, A), "b": times(factor, B)}, [1.0] * batches)
    found = finding_of(judged([other] * ranks, step(SAME, [1.0] * batches)))
    assert found.cause.code == "factor"
    assert found.cause.text.startswith("all gradients are ")
    assert text in found.cause.text
    assert found.cause.is_certain


def test_a_factor_of_some_gradients_names_them() -> None:
    one = {"a": A, "b": B, "c": A}
    some = step({"a": A, "b": times(2, B), "c": times(2, A)})
    cause = finding_of(judged([some] * 2, step(one))).cause
    assert cause.text.startswith("only the gradient of 2 parameters is \u00d72 what one device")
    assert cause.text.endswith("or reduced once too often")
    some = step({"a": A, "b": times(2, B), "c": A})
    cause = finding_of(judged([some] * 2, step(one))).cause
    assert cause.text.startswith("only the gradient of b is \u00d72")


def test_other_parameters_without_a_gradient_do_not_count_as_right() -> None:
    some = step({"a": times(2, A), "b": [0.0, 0.0]})
    cause = finding_of(judged([some] * 2, step({"a": A, "b": [0.0, 0.0]}))).cause
    assert cause.text.startswith("all gradients are \u00d72")


@pytest.mark.parametrize(("factor", "is_certain"), [(2.00001, True), (2.004, False)])
def test_a_factor_near_a_whole_number_is_certain_only_if_it_is_very_near(
    factor: float, is_certain: bool
) -> None:
    some = step({"a": times(factor, A)})
    ranks = [record(rank, some, dtypes=("bfloat16",)) for rank in range(2)]
    cause = finding_of(judge(ranks, record(0, step({"a": A})))).cause
    assert cause.text.startswith("all gradients are \u00d72 what one device")
    assert cause.is_certain is is_certain


def test_a_factor_without_a_pattern_is_unknown() -> None:
    other = step({"a": times(2, A), "b": times(3, B)})
    found = finding_of(judged([other] * 2, step(SAME)))
    assert (found.cause.code, found.cause.is_certain) == ("unknown", False)
    assert found.cause.text == "the gradient differs, and by no constant factor"


def test_a_gradient_that_is_missing_is_the_one_that_is_named() -> None:
    other = step({"a": A, "b": [0.0, 1.0]}, after={"c": [0.0, 0.0]})
    found = finding_of(judged([other] * 2, step({"a": A, "c": A, "b": B})))
    assert (found.cause.code, found.name, found.error) == ("no-gradient", "c", 1.0)


def test_a_gradient_of_the_rig_alone_differs_from_zero() -> None:
    found = finding_of(judged([step(SAME)] * 2, step({"a": A}, after={"b": [0.0, 0.0]})))
    assert (found.kind, found.name) == ("gradient", "b")


def test_gradients_that_are_never_reduced() -> None:
    one, other = step({"a": [2.0, 0.0], "b": B}), step({"a": [4.0, 2.0], "b": B})
    cause = finding_of(judged([one, other], step({"a": [3.0, 1.0], "b": B}))).cause
    assert cause.code == "never-reduced"
    assert "the gradient of a was never reduced" in cause.text
    assert "and the mean over the ranks is" in cause.text
    cause = finding_of(judged([one, other], step({"a": [6.0, 2.0], "b": B}))).cause
    assert (cause.code, cause.is_certain) == ("partial-sum", True)
    ranks = [
        step({"a": [2.0, 0.0]}, forwards=[("x",)]),
        step({"a": [4.0, 2.0]}, forwards=[("y", "z"), ("w",)]),
    ]
    whole = step({"a": [3.5, 1.5]}, forwards=[("x", "y", "z", "w")])
    cause = finding_of(judged(ranks, whole)).cause
    assert "and the mean, weighted by samples, over the ranks is" in cause.text


def test_many_parameters_are_named_in_part() -> None:
    names = ["a", "b", "c", "d", "e"]
    ranks = [step({name: [k, 0.0] for name in names} | {"z": A}) for k in (1.0, 3.0)]
    cause = finding_of(judged(ranks, step({name: [2.0, 0.0] for name in names} | {"z": A}))).cause
    assert "the gradient of e, d, c and 2 more was never reduced" in cause.text


@pytest.mark.parametrize(
    ("names", "text", "remedy"),
    [
        ("c", "gradient of c of shape (2,) was", "no module has c of shape (2,), and Distributed"),
        ("bc", "gradient of c of shape (2,), b was", "no module has c of shape (2,), and"),
        ("cd", "of d of shape (2,), c of shape (2,) was", "no module has d of shape (2,), c of"),
        (
            "b",
            "gradient of b was",
            "have these parameters in the module that DistributedDataParallel wraps",
        ),
    ],
)
def test_an_unreduced_parameter_of_no_module_is_named(names: str, text: str, remedy: str) -> None:
    facts = {
        name: ParameterFacts(NO_MODULE if name in "cd" else "Linear", order=at)
        for at, name in enumerate("abcd")
    }
    right = dict.fromkeys("abcd", A)
    steps = [step(right | {name: times(k, A) for name in names}) for k in (0.5, 1.5)]
    ranks = [record(rank, each, parameters=facts) for rank, each in enumerate(steps)]
    cause = finding_of(judge(ranks, record(0, step(right), parameters=facts))).cause
    assert cause.code == "never-reduced"
    assert text in cause.text
    assert cause.remedy.startswith(remedy)
    assert ("model.module" in cause.remedy) == ("b" in names)
    assert ("__init__" in cause.remedy) == (names != "b")
    assert cause.remedy.endswith("; or all_reduce these gradients with the mean")


def test_ranks_that_disagree_without_a_pattern() -> None:
    ranks = [step({"a": A}), step({"a": A}), step({"a": [1.0, 7.0]})]
    cause = finding_of(judged(ranks, step({"a": A}))).cause
    assert (cause.code, cause.text) == (
        "ranks-disagree",
        "ranks 0 and 2 have different gradients of a",
    )
    ranks = [step({"a": A}), step({"a": A}, after={"a": [1.0, 7.0]})]
    found = finding_of(judged(ranks, step({"a": A})))
    assert (found.cause.code, found.kind) == ("different-updates", "parameter")
    assert "ranks 0 and 1 have different values of a after equal gradients" in found.cause.text


def test_a_number_of_each_rank() -> None:
    ranks = [
        step({"a": times(2, A), "b": times(2, B)}),
        step({"a": times(0.5, A), "b": times(0.5, B)}),
    ]
    cause = finding_of(judged(ranks, step(SAME))).cause
    assert cause.code == "local-norm"
    assert "a number of its own: rank 0 by 2, rank 1 by 0.5." in cause.text
    ranks = [step({"a": times(2, A), "b": times(3, B)}), step(SAME)]
    assert finding_of(judged(ranks, step(SAME))).cause.code == "ranks-disagree"


def test_ranks_with_other_initial_values() -> None:
    ranks = [step({"a": A}), step({"a": A}, before={"a": B})]
    found = finding_of(judged(ranks, step({"a": A})))
    assert (found.cause.code, found.kind) == ("initial-values", "initial value")
    verdict = judged([step({"a": A}, before={"a": B})] * 2, step({"a": A}))
    assert verdict.exit_code == 2
    assert "a begins with different values on one device and on the rig" in str(verdict.reason)


def test_updates_that_are_a_multiple() -> None:
    start = {"a": [1.0, 1.0], "b": [2.0, 2.0]}
    one = step(SAME, before=start, after={"a": [0.7, 0.6], "b": [1.9, 2.0]})
    other = step(SAME, before=start, after={"a": [0.4, 0.2], "b": [1.8, 2.0]})
    cause = finding_of(judged([other] * 2, one)).cause
    assert cause.code == "learning-rate"
    assert "each update is \u00d72 that on one device" in cause.text
    other = step(SAME, before=start, after={"a": [0.4, 0.2], "b": [1.7, 2.0]})
    assert finding_of(judged([other] * 2, one)).cause.code == "unknown"


def test_the_same_dropout_on_all_ranks() -> None:
    whole = sampled((*X, *Y))

    def verdict(first: tuple[str, ...], second: tuple[str, ...], *, own: bool = True) -> int:
        ranks = [
            sampled(X, random_states=first),
            sampled(Y if own else (*Y, "y3"), random_states=second),
        ]
        return judged(ranks, whole).exit_code

    assert verdict(("s",), ("s",)) == 1
    assert verdict(("s",), ("t",)) == 0
    assert verdict((), ()) == 0


def test_runs_that_do_not_train() -> None:
    still = {"a": [0.0, 0.0]}
    found = finding_of(judged([step(still)] * 2, step(still)))
    assert (found.cause.code, found.line) == ("no-gradient-at-all", "train.py:10")
    stays = step({"a": A}, after=still)
    assert finding_of(judged([stays] * 2, stays)).cause.code == "no-update"
    first = step({"a": A}, [2.0])
    second = step({"a": A}, [2.0], before={"a": times(-0.1, A)}, after={"a": times(-0.2, A)})
    both = [record(rank, first, second) for rank in range(2)]
    found = finding_of(judge(both, record(0, first, second)))
    assert (found.cause.code, found.backward_line) == ("constant-loss", "train.py:9")
    assert "the loss is 2 in each of 2 steps" in found.cause.text
    assert judged([first] * 2, first).exit_code == 0  # one step tells nothing
    other = step({"a": A}, [1.0], before={"a": times(-0.1, A)}, after={"a": times(-0.2, A)})
    both = [record(rank, first, other) for rank in range(2)]
    assert judge(both, record(0, first, other)).exit_code == 0


def test_unequal_numbers_of_samples() -> None:
    ranks = [
        step({"a": A}, [2.0], forwards=[("x",)], sample_shape=(3,)),
        step({"a": A}, [4.0], forwards=[("y", "z", "w")], sample_shape=(3,)),
    ]
    one = step({"a": B}, [3.5], forwards=[("x", "y", "z", "w")], sample_shape=(3,))
    cause = finding_of(judged(ranks, one)).cause
    assert (cause.code, cause.is_certain) == ("unequal-counts", True)
    assert "the ranks average over unequal numbers of samples (1, 3)" in cause.text
    one = step({"a": B}, [3.4], forwards=[("x", "y", "z", "w")], sample_shape=(3,))
    cause = finding_of(judged(ranks, one)).cause
    assert (cause.code, cause.is_certain) == ("unequal-counts", False)


def test_many_counts_are_shown_in_part() -> None:
    def with_labels(labels: list[int]) -> StepRecord:
        return step({"a": A}, [1.0] * len(labels), labels=labels)

    ranks = [with_labels([1, 2, 3, 4, 5]), with_labels([6, 7, 8, 9, 10])]
    cause = finding_of(judged(ranks, step({"a": B}, [1.0]))).cause
    assert "the ranks and micro-batches average over unequal numbers of tokens" in cause.text
    assert "(1, 2, 3, 4, 5, 6, 7, 8, …)" in cause.text


def test_batch_norm_is_a_probable_cause() -> None:
    other = step({"a": [1.0, 7.0]})
    cause = finding_of(judged([other] * 2, step({"a": A}), batch_norms=("norm", "last"))).cause
    assert (cause.code, cause.is_certain) == ("batch-norm", False)
    assert "the batch norm norm uses" in cause.text
    moved = step({"a": A}, after={"a": [1.0, 7.0]})
    cause = finding_of(judged([moved] * 2, step({"a": A}), batch_norms=("norm",))).cause
    assert cause.code == "unknown"


@pytest.mark.parametrize(
    ("rig", "one", "reason"),
    [
        ({"a": A}, SAME, "b is trained on one device, and no rank of the rig has a parameter"),
        ({"a": [3.0, 4.0, 5.0]}, {"a": A}, "a has the shapes (3,), (3,) on the ranks, and on one "
         "device it is (2,)"),
        (SAME, {"a": A}, "b has the shapes (2,), (2,) on the ranks, and on one device it is not "
         "there"),
    ],
)  # fmt: skip
def test_parameters_that_do_not_match(
    rig: dict[str, list[float]], one: dict[str, list[float]], reason: str
) -> None:
    zero = {name: times(0, each) for name, each in rig.items()}
    verdict = judged([step(rig, before=zero)] * 2, step(one))
    assert verdict.exit_code == 2
    assert reason in str(verdict.reason)


def test_a_run_without_steps_cannot_be_compared() -> None:
    verdict = judge([record(0), record(1)], record(0, step(SAME)))
    assert (verdict.exit_code, verdict.world_size) == (2, 2)
    assert "no optimizer's step was seen on every rank" in str(verdict.reason)


def test_two_stages_with_the_same_name_cannot_be_compared() -> None:
    facts = [{"a": ParameterFacts("Linear", stage=stage)} for stage in (2, 1)]
    ranks = [record(rank, step({"a": A}), parameters=each) for rank, each in enumerate(facts)]
    verdict = judge(ranks, record(0, step({"a": A})))
    assert verdict.exit_code == 2
    assert "the pipeline stages 1 and 2 both have a parameter a" in str(verdict.reason)
