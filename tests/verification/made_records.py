"""Records of runs that are made by hand, and the verdict on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from anyrig.verification.diagnosis import judge
from anyrig.verification.piece import Piece
from anyrig.verification.records import LossRecord, ParameterFacts, RankRecord, StepRecord
from anyrig.verification.verdict import Finding, Verdict

Values = Mapping[str, Sequence[float]]


def pieces(values: Values) -> dict[str, Piece]:
    made = {name: torch.tensor(each, dtype=torch.float64) for name, each in values.items()}
    return {name: Piece(each, tuple(each.shape), (0,)) for name, each in made.items()}


def step(
    gradients: Values,
    losses: Sequence[float] = (1.0,),
    before: Values | None = None,
    after: Values | None = None,
    **more: Any,
) -> StepRecord:
    """Return a step whose parameters begin at zero and move by a tenth of the gradients."""
    names = dict.fromkeys([*gradients, *(before or {}), *(after or {})])
    start = {name: [0.0, 0.0] for name in names} | dict(before or {})
    moved = {name: [-0.1 * each for each in values] for name, values in gradients.items()}
    return StepRecord(
        pieces(gradients),
        pieces(start),
        pieces(start | moved | dict(after or {})),
        [LossRecord(loss, "train.py:9") for loss in losses],
        line="train.py:10",
        **more,
    )


def record(rank: int, *steps: StepRecord, ranks: int = 2, **more: Any) -> RankRecord:
    names = dict.fromkeys(name for each in steps for name in each.after)
    facts = {name: ParameterFacts("Linear", "train.py:5", at) for at, name in enumerate(names)}
    more.setdefault("parameters", facts)
    more.setdefault("dtypes", ("float64",))
    return RankRecord(rank, ranks, tuple(steps), **more)


def judged(rig: Sequence[StepRecord], one: StepRecord, **more: Any) -> Verdict:
    """Return the verdict on one step of some ranks and of one device."""
    ranks = [record(rank, each, ranks=len(rig), **more) for rank, each in enumerate(rig)]
    return judge(ranks, record(0, one, ranks=1))


def finding_of(verdict: Verdict) -> Finding:
    assert verdict.finding is not None, str(verdict)
    return verdict.finding


A, B = [3.0, 4.0], [1.0, 0.0]
SAME = {"a": A, "b": B}


def times(factor: float, values: list[float]) -> list[float]:
    return [factor * each for each in values]


X, Y = ("x1", "x2"), ("y1", "y2")


def sampled(
    *calls: tuple[str, ...],
    gradient: list[float] = A,
    shape: tuple[int, ...] = (3,),
    **more: Any,
) -> StepRecord:
    return step({"a": gradient}, forwards=list(calls), sample_shape=shape, **more)
