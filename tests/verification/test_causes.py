"""Causes from the records of two runs."""

from __future__ import annotations

import math

import torch

from anyrig.verification.diagnosis import judge
from anyrig.verification.piece import Piece
from anyrig.verification.records import LossRecord, RankRecord, StepRecord


def record(rank: int, gradient: list[float], loss: float, labels: int) -> RankRecord:
    weight = {"weight": Piece(torch.zeros(2), (2,), (0,))}
    gradients = {"weight": Piece(torch.tensor(gradient), (2,), (0,))}
    step = StepRecord(gradients, weight, weight, losses=[LossRecord(loss)], labels=[labels])
    return RankRecord(rank, 2, (step,), dtypes=("float64",))


def test_losses_prove_unequal_counts_even_if_a_rank_has_no_labels() -> None:
    ranks = [record(0, [1.0, 2.0], 3.0, 4), record(1, [1.0, 2.0], math.nan, 0)]
    finding = judge(ranks, record(0, [1.0, 1.0], 3.0, 4)).finding
    assert finding is not None
    assert finding.cause.code == "unequal-counts"
    assert finding.cause.is_certain
