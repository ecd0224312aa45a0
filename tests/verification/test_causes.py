"""Causes from the records of two runs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from made_records import finding_of

from anyrig.verification.causes.factors import _lone_stage
from anyrig.verification.diagnosis import judge
from anyrig.verification.evidence import Evidence
from anyrig.verification.piece import Piece
from anyrig.verification.records import LossRecord, RankRecord, StepRecord


def record(rank: int, gradient: list[float], loss: float, labels: int) -> RankRecord:
    weight = {"weight": Piece(torch.zeros(2), (2,), (0,))}
    gradients = {"weight": Piece(torch.tensor(gradient), (2,), (0,))}
    step = StepRecord(gradients, weight, weight, losses=[LossRecord(loss)], labels=[labels])
    return RankRecord(rank, 2, (step,), dtypes=("float64",))


@pytest.mark.parametrize(
    ("stages", "stage"),
    [
        ([{"a": 3, "b": 3, "c": 3}, {"d": 1}], 3),
        ([{"d": 1}, {"a": 0, "b": 0}], 0),
        ([{"a": 3, "b": 3}, {"a": 3, "b": 3}], None),  # another rank has the same stage
        ([{"a": 3, "b": 2}, {}], None),
        ([{"a": 3}, {"b": 2}], None),
        ([{"a": None, "b": None}], None),
        ([{"d": 1}], None),
    ],
)
def test_a_stage_of_one_rank_is_named(
    stages: list[dict[str, int | None]], stage: int | None
) -> None:
    """Where all parameters that differ, a and b, are on one stage of one rank."""
    rig = [
        SimpleNamespace(parameters={name: SimpleNamespace(stage=at) for name, at in own.items()})
        for own in stages
    ]
    evidence = SimpleNamespace(rig=rig, difference=SimpleNamespace(names=("a", "b")))
    assert _lone_stage(cast(Evidence, evidence)) == stage


def test_losses_prove_unequal_counts_even_if_a_rank_has_no_labels() -> None:
    ranks = [record(0, [1.0, 2.0], 3.0, 4), record(1, [1.0, 2.0], math.nan, 0)]
    finding = judge(ranks, record(0, [1.0, 1.0], 3.0, 4)).finding
    assert finding is not None
    assert finding.cause.code == "unequal-counts"
    assert finding.cause.is_certain


def divided(rank: int, *divisors: float) -> RankRecord:
    """A record whose loss proves nothing, and has terms that are divided by these numbers."""
    made = record(rank, [2.0 if rank == 2 else 1.0, 1.0], 1.0, 0)
    (step,) = made.steps
    step.losses[:] = [LossRecord(1.0, divisors=divisors)]
    step.labels.clear()
    return made


def test_divisors_count_only_if_all_losses_have_as_many_terms() -> None:
    one = divided(2, 8)
    cause = finding_of(judge([divided(0, 3), divided(1, 5)], one)).cause
    assert (cause.code, cause.is_certain) == ("unequal-counts", False)
    assert "by unequal numbers (3, 5)" in cause.text
    for unlike in ([divided(0, 3), divided(1, 5, 2)], [divided(0, 3), divided(1)]):
        assert finding_of(judge(unlike, one)).cause.code != "unequal-counts"
