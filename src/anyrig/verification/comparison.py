"""The first difference between a run on a rig and one on one device.

In each step, gradients are compared before parameters: if parameters differ after equal gradients,
the optimizers differ. Before the first step, the ranks' initial values are compared with each
other; those of the run on one device are made equal to the first rank's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import VerificationError
from .bounds import allowed, bound_of, differs, norm, norm_of_all
from .joining import Joined, join
from .piece import Piece
from .pipeline_stages import check_names_of_stages
from .records import RankRecord, StepRecord

INITIAL, GRADIENT, PARAMETER = "initial value", "gradient", "parameter"


@dataclass(frozen=True)
class Difference:
    """The first difference: tensors of one kind that differ in one step.

    Attributes:
        kind: initial value, gradient or parameter.
        step: the step, from 1.
        names: the tensors that differ, in the order in which they are computed.
        error: the norm of the first tensor's difference, relative to its norm on one device.
        ranks: two ranks whose copies of the first tensor differ; empty if the ranks agree.
    """

    kind: str
    step: int
    names: tuple[str, ...]
    error: float
    ranks: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The tensor that is computed first."""
        return self.names[0]


@dataclass(frozen=True)
class Tensors:
    """The tensors of one kind in one step.

    Attributes:
        joined: the tensors of the rig, by name.
        expected: the tensors of the run on one device, by name.
    """

    joined: Mapping[str, Joined]
    expected: Mapping[str, Tensor]


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Attributes:
        steps: how many steps were compared.
        dtype: the coarsest floating-point type of the runs.
        bound: the bound for differences by rounding.
        difference: the first difference, or None.
        tensors: the tensors of that kind and step; empty without a difference.
    """

    steps: int
    dtype: str
    bound: float
    difference: Difference | None = None
    tensors: Tensors | None = None


def compare(rig: Sequence[RankRecord], one: RankRecord) -> Comparison:
    """Compare the records of the ranks of a rig with that of one device.

    Raises:
        VerificationError: the runs have nothing to compare, or different parameters.
    """
    steps = min(len(record.steps) for record in (*rig, one))
    if steps == 0:
        raise VerificationError(
            "no optimizer's step was seen on every rank and on one device; the script must call "
            "step() of a torch.optim.Optimizer"
        )
    check_names_of_stages(rig)
    dtype, bound = bound_of(name for record in (*rig, one) for name in record.dtypes)
    for step in range(steps):
        of_ranks = {record.rank: record.steps[step] for record in rig}
        stages = [
            (GRADIENT, lambda record: record.gradients),
            (PARAMETER, lambda record: record.after),
        ]
        if step == 0:
            stages.insert(0, (INITIAL, lambda record: record.before))
        for kind, of in stages:
            tensors = _tensors(of_ranks, one.steps[step], of, kind)
            difference = _difference(kind, step + 1, tensors, bound, one)
            if kind == INITIAL and difference is not None and not difference.ranks:
                raise VerificationError(
                    f"{difference.name} begins with different values on one device and on the "
                    "rig, and could not be set to those of the rig; make the initial values "
                    "depend on a seed alone"
                )
            if difference is not None:
                return Comparison(step + 1, dtype, bound, difference, tensors)
    return Comparison(steps, dtype, bound)


def _tensors(
    of_ranks: Mapping[int, StepRecord],
    one: StepRecord,
    of: Callable[[StepRecord], Mapping[str, Piece]],
    kind: str,
) -> Tensors:
    expected = {
        name: piece.values.view(piece.shape) for name, piece in of(one).items() if piece.is_whole
    }
    names = dict.fromkeys([*expected, *(name for each in of_ranks.values() for name in of(each))])
    joined = {}
    for name in names:
        pieces = {rank: of(each)[name] for rank, each in of_ranks.items() if name in of(each)}
        if not pieces:
            pieces = _zeros_like(name, of_ranks) if kind == GRADIENT else {}
        if not pieces:
            raise VerificationError(
                f"{name} is trained on one device, and no rank of the rig has a parameter of this "
                "name; give its module the same name in both cases"
            )
        found = join(pieces, expected.get(name))
        if found is None or (name not in expected and kind != GRADIENT):
            shapes = ", ".join(str(piece.shape) for piece in pieces.values())
            there = tuple(expected[name].shape) if name in expected else "not there"
            raise VerificationError(
                f"{name} has the shapes {shapes} on the ranks, and on one device it is {there}; "
                "the parts of a parameter must make up the whole in the order of ranks"
            )
        joined[name] = found
        expected.setdefault(name, torch.zeros_like(found.whole))  # None counts as zero
    return Tensors(joined, expected)


def _zeros_like(name: str, of_ranks: Mapping[int, StepRecord]) -> dict[int, Piece]:
    """Return zeros for the gradient of a parameter for which no rank has a gradient."""
    return {
        rank: Piece(
            torch.zeros_like(each.after[name].values),
            each.after[name].shape,
            each.after[name].start,
            flat_start=each.after[name].flat_start,
        )
        for rank, each in of_ranks.items()
        if name in each.after
    }


def _difference(
    kind: str, step: int, tensors: Tensors, bound: float, one: RankRecord
) -> Difference | None:
    all_norm = norm_of_all(tensors.expected)
    found: dict[str, tuple[float, tuple[int, ...]]] = {}
    for name, joined in tensors.joined.items():
        expected = tensors.expected[name]
        limit = allowed(bound, step, expected, all_norm)
        ranks: tuple[int, ...] = ()
        first = next(iter(joined.copies), 0)
        for rank, copy in joined.copies.items():
            if differs(copy, joined.copies[first], limit):
                ranks = (first, rank)
                break
        if ranks or differs(joined.whole, expected, limit):
            worst = max(
                (norm(copy.double() - expected.double()) for copy in joined.copies.values()),
                default=norm(joined.whole.double() - expected.double()),
            )
            found[name] = worst / (norm(expected) or 1.0), ranks
    if not found:
        return None
    # A backward pass computes the gradients of the last module first.
    facts = one.parameters
    names = [*found]
    if kind == GRADIENT:
        names.sort(key=lambda name: -facts[name].order if name in facts else 0)
    error, ranks = found[names[0]]
    return Difference(kind, step, tuple(names), error, ranks)
