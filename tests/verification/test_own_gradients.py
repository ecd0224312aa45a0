"""When records prove that ranks multiplied their own gradients before they were reduced."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from made_records import finding_of, pieces, record, step, times
from torch import nn

from anyrig.verification.backward_gradients import BackwardGradients
from anyrig.verification.diagnosis import judge
from anyrig.verification.piece import piece_of
from anyrig.verification.records import StepRecord
from anyrig.verification.verdict import Cause

OWN = ([3.0, 4.0, 0.0], [0.0, 5.0, 12.0])
OTHER = ([1.0, 0.0], [1.0, 2.0])


def weighted(weights: Sequence[float], rows: Sequence[list[float]]) -> list[float]:
    return [
        sum(w * x for w, x in zip(weights, each, strict=True)) for each in zip(*rows, strict=True)
    ]


def of_rank(rank: int, weights: Sequence[float], own: Sequence[list[float]] = OWN) -> StepRecord:
    """A step whose gradients are a weighted sum over the ranks, and were the rank's own before."""
    reduced = {"a": weighted(weights, own), "b": weighted(weights, OTHER)}
    before = {name: times(0, each) for name, each in reduced.items()}
    kept = pieces({"a": own[rank], "b": OTHER[rank]})
    return step(reduced, before=before, after_backward=kept)


def cause_of(
    weights: Sequence[float],
    alone: Sequence[float] = (0.5, 0.5),
    own: Sequence[list[float]] = OWN,
    dtype: str = "float64",
) -> Cause:
    """Return the cause if ranks use these weights, and one device others, and clips to a tenth."""
    ranks = [record(rank, of_rank(rank, weights, own), dtypes=(dtype,)) for rank in range(2)]
    kept = {"a": weighted(alone, own), "b": weighted(alone, OTHER)}
    clipped = {name: times(0.1, each) for name, each in kept.items()}
    before = {name: times(0, each) for name, each in kept.items()}
    one = step(clipped, before=before, after_backward=pieces(kept))
    return finding_of(judge(ranks, record(0, one, dtypes=(dtype,)))).cause


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ((0.05, 0.1), "before they were reduced: rank 0 by 0.1, rank 1 by 0.2. Clipping"),
        ((0.5, 0.25), "before they were reduced: rank 0 by 1, rank 1 by 0.5. Clipping"),
        ((1.0, 1.5), "before they were reduced: rank 0 by 2, rank 1 by 3. Clipping"),
    ],
)
def test_the_numbers_of_the_ranks_are_reported(weights: Sequence[float], text: str) -> None:
    cause = cause_of(weights)
    assert (cause.code, cause.is_certain) == ("local-norm", True)
    assert text in cause.text
    assert cause.remedy.startswith("reduce first, then clip by the norm of the reduced gradients")
    assert "With DistributedDataParallel, call it after the step's last backward()" in cause.remedy


@pytest.mark.parametrize(
    ("weights", "alone", "code"),
    [
        ((0.5, 0.5), (0.5, 0.5), "factor"),  # no rank multiplied its gradients
        ((0.3, 0.3), (0.5, 0.5), "factor"),  # by the same number
        ((0.5, 0.5), (0.25, 0.75), "unknown"),  # one device weighs the ranks' samples differently
        ((0.2, 0.4), (0.25, 0.75), "unknown"),
        ((1.0, 0.0), (0.5, 0.5), "unknown"),  # one rank is left out
        ((1.0, -0.5), (0.5, 0.5), "unknown"),
    ],
)
def test_other_weights_are_other_mistakes(
    weights: Sequence[float], alone: Sequence[float], code: str
) -> None:
    assert cause_of(weights, alone).code == code


def test_a_gradient_that_the_ranks_own_do_not_make_up_is_unknown() -> None:
    ranks = [of_rank(rank, (0.05, 0.1)) for rank in range(2)]
    ranks = [
        step(
            {"a": [1.5, 9.0, 9.6], "b": [1.3, 0.0]},
            before={"a": [0.0] * 3},
            after_backward=each.after_backward,
        )
        for each in ranks
    ]
    kept = {"a": weighted((0.5, 0.5), OWN), "b": weighted((0.5, 0.5), OTHER)}
    one = step(kept, before={"a": [0.0] * 3})
    found = finding_of(judge([record(0, ranks[0]), record(1, ranks[1])], record(0, one)))
    assert found.cause.code == "unknown"


@pytest.mark.parametrize(
    "own",
    [
        (OWN[0], times(2, OWN[0])),
        (OWN[0], [each + 1e-5 for each in OWN[0]]),
        (OWN[0], [0.0, 0.0, 0.0]),
    ],
)
def test_dependent_gradients_prove_nothing(own: Sequence[list[float]]) -> None:
    ranks = [record(rank, only_a(rank, (0.1, 0.3), own)) for rank in range(2)]
    one = step({"a": weighted((0.5, 0.5), own)}, before={"a": [0.0] * 3})
    assert finding_of(judge(ranks, record(0, one))).cause.code in ("factor", "unknown")


def only_a(rank: int, weights: Sequence[float], own: Sequence[list[float]]) -> StepRecord:
    kept = pieces({"a": own[rank]})
    before = {"a": times(0, own[rank])}
    return step({"a": weighted(weights, own)}, before=before, after_backward=kept)


@pytest.mark.parametrize(("width", "code"), [(2, "unknown"), (3, "local-norm")])
def test_as_many_elements_as_ranks_prove_nothing(width: int, code: str) -> None:
    own = (
        [3.0, 4.0, 1.0][:width] + [0.0] * (3 - width),
        [1.0, 5.0, 2.0][:width] + [0.0] * (3 - width),
    )
    ranks = [record(rank, only_a(rank, (0.1, 0.3), own)) for rank in range(2)]
    one = step({"a": weighted((0.5, 0.5), own)}, before={"a": [0.0] * 3})
    assert finding_of(judge(ranks, record(0, one))).cause.code == code


@pytest.mark.parametrize(
    ("weights", "dtype", "code"),
    [
        ((0.5, 0.4), "float64", "local-norm"),
        ((0.5, 0.4), "float32", "local-norm"),
        ((0.5, 0.4), "bfloat16", "factor"),
        ((0.5, 0.2), "bfloat16", "unknown"),
        ((0.5, 0.05), "bfloat16", "local-norm"),
    ],
)
def test_numbers_that_nearly_agree_prove_nothing_in_coarse_types(
    weights: Sequence[float], dtype: str, code: str
) -> None:
    assert cause_of(weights, dtype=dtype).code == code


def test_only_gradients_that_changed_are_kept() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gradients = BackwardGradients()

    def changed(parameter: torch.Tensor) -> list[float] | None:
        assert parameter.grad is not None
        now = piece_of(parameter.grad)
        assert now is not None
        found = gradients.changed(parameter, now)
        return None if found is None else found.values.flatten().tolist()

    model(torch.ones(1, 2)).sum().backward()
    assert changed(model.weight) is None  # nothing was kept
    gradients.keep()
    assert changed(model.weight) is None
    assert model.weight.grad is not None
    model.weight.grad *= 3
    assert changed(model.weight) == [1.0, 1.0]
    assert changed(model.bias) is None
    optimizer.step()
    gradients.end_step()
    assert changed(model.weight) == [1.0, 1.0]  # for another optimizer's step
    model(torch.ones(1, 2)).sum().backward()
    gradients.keep()
    assert changed(model.weight) is None
    other = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)
    (added,) = other.param_groups[0]["params"]
    added.sum().backward()
    gradients.keep()  # within a step, the optimizers are those of its first backward pass
    added.grad *= 2
    assert changed(added) is None
    added.grad /= 2
    gradients.end_step()
    gradients.keep()
    added.grad *= 2
    assert changed(added) == [1.0, 1.0]
    part = piece_of(added.grad[:1])
    assert part is not None
    assert gradients.changed(added, part) is None
