"""`Evidence`, the facts from which causes of a difference are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from .bounds import allowed, norm, norm_of_all
from .comparison import Comparison, Difference, Tensors
from .records import LoadedBatch, RankRecord, StepRecord


@dataclass(frozen=True)
class Evidence:
    """A difference, and what both runs recorded."""

    rig: Sequence[RankRecord]
    one: RankRecord
    comparison: Comparison

    @property
    def difference(self) -> Difference:
        """The difference."""
        assert self.comparison.difference is not None
        return self.comparison.difference

    @property
    def tensors(self) -> Tensors:
        """The tensors of the kind that differs, in that step."""
        assert self.comparison.tensors is not None
        return self.comparison.tensors

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.rig)

    @property
    def rank_steps(self) -> list[StepRecord]:
        """The step that differs, on each rank."""
        return [record.steps[self.difference.step - 1] for record in self.rig]

    @property
    def one_step(self) -> StepRecord:
        """The step that differs, on one device."""
        return self.one.steps[self.difference.step - 1]

    def batches_of(self, record: RankRecord) -> list[LoadedBatch]:
        """Return the batches that a process loaded in the step that differs."""
        step = self.difference.step - 1
        return [one for one in record.batches if one.step == step and one.batch is not None]

    @cached_property
    def is_recollated(self) -> bool:
        """Whether a collate function made batches of the step anew on one device."""
        return any(one.is_recollated for one in self.batches_of(self.one))

    @cached_property
    def micro_batches(self) -> int:
        """How many losses the step had on a rank."""
        return max((len(step.losses) for step in self.rank_steps), default=1)

    def limit(self, name: str) -> float:
        """Return by how much the tensor may differ by rounding."""
        everything = norm_of_all(self.tensors.expected)
        step = self.difference.step
        return allowed(self.comparison.bound, step, self.tensors.expected[name], everything)

    def factor(self, actual: Tensor, name: str, expected: Tensor | None = None) -> float | None:
        """Return c where `actual` is c times the expected tensor up to rounding, else None."""
        target = (self.tensors.expected[name] if expected is None else expected).double()
        square = float((target * target).sum())
        if square == 0 or norm(target) <= self.limit(name):
            return None
        ratio = float((actual.double() * target).sum()) / square
        residual = norm(actual.double() - ratio * target)
        return ratio if residual <= 10 * self.limit(name) * max(1.0, abs(ratio)) else None

    @cached_property
    def samples(self) -> SampleFacts:
        """The samples of the step, on the ranks and on one device."""
        return sample_facts(self.rank_steps, self.one_step)


@dataclass(frozen=True)
class SampleFacts:
    """The samples that the runs computed in one step.

    Attributes:
        by_rank: the samples of each rank; empty if they are unknown.
        rig: all samples of the rig; ranks with equal batches count once.
        one: all samples of one device.
        is_known: whether the samples of both runs are known and have the same shape.
    """

    by_rank: tuple[tuple[str, ...], ...]
    rig: Counter[str]
    one: Counter[str]
    is_known: bool

    @property
    def are_equal(self) -> bool:
        """Whether both runs computed the same samples."""
        return self.rig == self.one

    @property
    def is_same_on_all_ranks(self) -> bool:
        """Whether several ranks all computed the same samples; False if these are unknown."""
        distinct = {tuple(sorted(one)) for one in self.by_rank}
        return len(self.by_rank) > 1 and len(distinct) == 1 and any(self.by_rank)

    @property
    def repeated(self) -> int:
        """How many samples the rig computed more often than one device."""
        return sum((self.rig - self.one).values())

    @property
    def missed(self) -> int:
        """How many samples one device computed more often than the rig."""
        return sum((self.one - self.rig).values())

    @property
    def rig_has_others(self) -> bool:
        """Whether the rig computed samples that one device did not compute at all."""
        return bool(self.rig.keys() - self.one.keys())


def sample_facts(rank_steps: Sequence[StepRecord], one_step: StepRecord) -> SampleFacts:
    """Return the samples of a step."""
    by_rank = tuple(
        tuple(sample for call in step.forwards for sample in call) for step in rank_steps
    )
    distinct = dict.fromkeys(tuple(sorted(one)) for one in by_rank)
    one = Counter(sample for call in one_step.forwards for sample in call)
    shapes = {
        step.sample_shape for step in (*rank_steps, one_step) if step.sample_shape is not None
    }
    is_known = bool(one) and any(by_rank) and len(shapes) == 1
    return SampleFacts(
        by_rank, Counter(sample for rank in distinct for sample in rank), one, is_known
    )
