"""What the ranks of a group must do alike, and where they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..observe.census import parameters_of
from .check import Check
from .hazard import Hazard, HazardKind, Place

# The most steps, and the most iterations over loaders, of a rank that are compared.
_MOST = 1000


@dataclass(frozen=True)
class Draw:
    """An iteration over a `DistributedSampler`.

    Attributes:
        order: what the order of samples depends on: the number of samples, the seed, the epoch, and
            whether the samples are shuffled and the last ones dropped.
    """

    place: Place
    order: tuple[int, int, int, bool, bool]


@dataclass(frozen=True)
class RankFacts:
    """What a rank did.

    Attributes:
        draws: its iterations over samplers.
        steps: for each optimizer step, the lines of the backward passes before it.
        shapes: the shapes of the parameters that its optimizers have, as text. Ranks with different
            parameters run different parts of a model.
    """

    draws: tuple[Draw, ...] = ()
    steps: tuple[tuple[Place, ...], ...] = ()
    shapes: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return {
            "draws": [
                [each.place.file, each.place.number, list(each.order)] for each in self.draws
            ],
            "steps": [[[each.file, each.number] for each in step] for step in self.steps],
            "shapes": self.shapes,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RankFacts:
        """Return the facts that `as_json` has turned into values."""
        return cls(
            tuple(
                Draw(Place("loaded", file, number), tuple(order))
                for file, number, order in values["draws"]
            ),
            tuple(
                tuple(Place("backward", file, number) for file, number in step)
                for step in values["steps"]
            ),
            values["shapes"],
        )


class RankWatch(Check):
    """Collects the facts of this rank."""

    def __init__(self) -> None:
        self._draws: list[Draw] = []
        self._steps: list[tuple[Place, ...]] = []
        self._backwards: list[Place] = []
        self._shapes: dict[int, str] = {}

    def before_backward(self, roots: Sequence[Tensor], place: Place) -> None:
        """Note the line of a backward pass."""
        if len(self._backwards) < _MOST:
            self._backwards.append(place)

    def before_step(self, optimizer: Optimizer, place: Place) -> None:
        """Note the backward passes since the last step."""
        if id(optimizer) not in self._shapes:
            shapes = " ".join(str(tuple(each.shape)) for each in parameters_of(optimizer))
            self._shapes[id(optimizer)] = shapes
        if len(self._steps) < _MOST:
            step = tuple(self._backwards)
            is_same = bool(self._steps) and self._steps[-1] == step
            self._steps.append(self._steps[-1] if is_same else step)  # takes no memory each step
        self._backwards.clear()

    def sampled(self, sampler: Any, place: Place) -> None:
        """Note what the order of a sampler depends on."""
        if len(self._draws) < _MOST:
            order = (len(sampler.dataset), sampler.seed, sampler.epoch)
            self._draws.append(Draw(place, (*order, sampler.shuffle, sampler.drop_last)))

    def facts(self) -> RankFacts:
        """Return what this rank has done."""
        shapes = "; ".join(self._shapes.values())
        return RankFacts(tuple(self._draws), tuple(self._steps), shapes)


def compare_ranks(facts: Sequence[RankFacts]) -> list[Hazard]:
    """Return where ranks with the same parameters differ, at most one hazard of each kind.

    Ranks may end early, so only what both ranks did is compared.

    Args:
        facts: the facts of each rank, in the order of ranks.
    """
    alike: dict[str, list[int]] = defaultdict(list)
    for rank, each in enumerate(facts):
        alike[each.shapes].append(rank)
    found: dict[HazardKind, Hazard] = {}
    for ranks in alike.values():
        for other in ranks[1:]:
            first = ranks[0]
            for hazard in _compare(first, facts[first], other, facts[other]):
                found.setdefault(hazard.kind, hazard)
    return list(found.values())


def _compare(rank: int, one: RankFacts, other_rank: int, other: RankFacts) -> list[Hazard]:
    hazards = []
    for i, (draw, its) in enumerate(zip(one.draws, other.draws, strict=False)):
        if draw.order != its.order:
            hazards.append(_describe_order(i, rank, draw, other_rank, its))
            break
    for i, (step, its_step) in enumerate(zip(one.steps, other.steps, strict=False)):
        if step != its_step:
            hazards.append(_describe_flow(i, rank, step, other_rank, its_step))
            break
    return hazards


def _describe_order(index: int, rank: int, one: Draw, other_rank: int, other: Draw) -> Hazard:
    names = ("samples", "seed", "epoch", "shuffle", "drop_last")
    differing = [
        f"{name} is {a} on rank {rank} and {b} on rank {other_rank}"
        for name, a, b in zip(names, one.order, other.order, strict=True)
        if a != b
    ]
    what = (
        f"in iteration {index + 1}, the samplers of ranks {rank} and {other_rank} use different "
        f"orders, so some samples come twice and some never: {'; '.join(differing)}"
    )
    remedy = "give each rank the same dataset and seed, and call sampler.set_epoch(epoch) on all"
    places = (
        Place(f"rank {rank}", one.place.file, one.place.number),
        Place(f"rank {other_rank}", other.place.file, other.place.number),
    )
    return Hazard(HazardKind.DATA_ORDER, what, places, remedy)


def _describe_flow(
    index: int, rank: int, one: tuple[Place, ...], other_rank: int, other: tuple[Place, ...]
) -> Hazard:
    what = (
        f"before step {index + 1}, rank {rank} ran {len(one)} backward passes and rank "
        f"{other_rank} ran {len(other)}; the first difference is at these lines"
    )
    common = min(len(one), len(other))
    at = next((i for i in range(common) if one[i] != other[i]), common)
    places = tuple(
        Place(f"rank {number}", passes[at].file, passes[at].number)
        for number, passes in ((rank, one), (other_rank, other))
        if at < len(passes)
    )
    remedy = "let all ranks take the same branch: decide on rank 0 and broadcast the decision"
    return Hazard(HazardKind.CONTROL_FLOW, what, places, remedy)
