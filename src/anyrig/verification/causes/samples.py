"""Causes by which the ranks choose or weigh samples differently from one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...units import format_count
from ..comparison import GRADIENT, INITIAL
from ..evidence import Evidence
from ..recollation import REMEDY, shapes_of
from ..verdict import Cause

SAMPLER = (
    "give the DataLoader a DistributedSampler, or use anyrig.distribute(loader); slice a batch by "
    "samples[rank::world_size]"
)


def same_samples_everywhere(step: int, ranks: int, which: str = "") -> Cause:
    """Every rank computes the same samples, though each has the whole model, or the same stage."""
    return Cause(
        "same-samples",
        f"all {ranks} ranks{which} compute the same samples in step {step}, so {ranks - 1} of them "
        "repeat the work of the first",
        SAMPLER,
    )


def repeated_or_missed(evidence: Evidence) -> Cause | None:
    """A part of the batch is computed twice, or not at all."""
    facts = evidence.samples
    if evidence.difference.kind == INITIAL or not facts.is_known or facts.are_equal:
        return None
    if facts.rig_has_others:
        return None
    parts = []
    if facts.repeated:
        parts.append(f"{format_count(facts.repeated, 'sample')} of the batch twice")
    if facts.missed:
        parts.append(f"{format_count(facts.missed, 'sample')} of the batch not at all")
    return Cause(
        "samples",
        f"the ranks compute {' and '.join(parts)}",
        f"give each rank its own part of the batch, and the ranks all of it: {SAMPLER}",
    )


@dataclass(frozen=True)
class _Counts:
    """Numbers by which the losses of a step may have been divided.

    Attributes:
        noun: what they count, such as "tokens"; None for divisors that were read from the losses.
        of_ranks: one for each loss of the ranks.
        of_one: one for each loss on one device.
    """

    noun: str | None
    of_ranks: Sequence[float]
    of_one: Sequence[float]


def unequal_counts(evidence: Evidence) -> Cause | None:
    """Means over unequal numbers of tokens or samples were averaged as if they were equal."""
    if evidence.difference.ranks or evidence.difference.kind == INITIAL:
        return None
    losses = [loss.value for step in evidence.rank_steps for loss in step.losses]
    possible = [
        one
        for one in _candidate_counts(evidence)
        if len(one.of_ranks) == len(losses) and len(set(one.of_ranks)) > 1
    ]
    proven = next((one for one in possible if _is_proven(evidence, losses, one)), None)
    if proven is not None:
        return _cause_of(evidence, proven, is_certain=True)
    # Batches that are padded anew have other numbers of tokens, so that their numbers say less.
    if not possible or evidence.difference.kind != GRADIENT or evidence.is_recollated:
        return None
    return _cause_of(evidence, possible[0], is_certain=False)


def _is_proven(evidence: Evidence, losses: Sequence[float], counts: _Counts) -> bool:
    """Return whether the ranks' losses make up that of one device with these weights alone."""
    one_losses = [loss.value for loss in evidence.one_step.losses]
    of_one = counts.of_one if len(counts.of_one) == len(one_losses) else [1] * len(one_losses)
    expected = _weighted(one_losses, of_one)
    bound = evidence.comparison.bound
    return _agree(_weighted(losses, counts.of_ranks), expected, bound) and not _agree(
        _weighted(losses, [1] * len(losses)), expected, bound
    )


def _cause_of(evidence: Evidence, counts: _Counts, *, is_certain: bool) -> Cause:
    numbers = [f"{one:.6g}" for one in counts.of_ranks]
    shown = ", ".join(numbers[:8]) + (", …" if len(numbers) > 8 else "")
    where = "ranks" if evidence.micro_batches == 1 else "ranks and micro-batches"
    noun = counts.noun
    if noun is None:
        return Cause(
            "unequal-counts",
            f"the {where} divide the sums of their losses by unequal numbers ({shown}), and the "
            "mean of their means is not the mean over all that these numbers count",
            "divide by the number of all ranks and micro-batches of the step, for a mask: "
            "count = mask.sum(); torch.distributed.all_reduce(count); (losses * mask).sum() / "
            "count, times the world size where DDP or FSDP averages; or use "
            "anyrig.spread(model, loss=function) with a function that returns the sum and the "
            "count, (losses * mask).sum(), mask.sum()",
            is_certain,
        )
    return Cause(
        "unequal-counts",
        f"the {where} average over unequal numbers of {noun} ({shown}), and the mean of their "
        f"means is not the mean over all {noun}",
        f"add up the losses of the {noun} (reduction='sum'), and divide by the number of "
        f"{noun} in all ranks and micro-batches of the step, times the world size where DDP or "
        "FSDP averages; or use anyrig.spread(model, loss=criterion)",
        is_certain,
    )


def _candidate_counts(evidence: Evidence) -> list[_Counts]:
    labels = [count for step in evidence.rank_steps for count in step.labels]
    samples = [len(call) for step in evidence.rank_steps for call in step.forwards]
    one = evidence.one_step
    return [
        _Counts("tokens", labels, [*one.labels]),
        *_divisors(evidence),
        _Counts("samples", samples, [len(call) for call in one.forwards]),
    ]


def _divisors(evidence: Evidence) -> list[_Counts]:
    """Return the divisors of each term of the losses, if all losses have as many terms."""
    losses = [loss for step in evidence.rank_steps for loss in step.losses]
    terms = {len(loss.divisors) for loss in (*losses, *evidence.one_step.losses)}
    if len(terms) != 1:
        return []
    return [
        _Counts(
            None,
            [_rounded(loss.divisors[term]) for loss in losses],
            [_rounded(loss.divisors[term]) for loss in evidence.one_step.losses],
        )
        for term in range(terms.pop())
    ]


def _rounded(divisor: float) -> float:
    """Return the nearest whole number if the divisor differs from it by rounding only."""
    return round(divisor) if abs(divisor - round(divisor)) <= 1e-6 * abs(divisor) else divisor


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float | None:
    total = sum(weights)
    if total == 0:
        return None
    # The mean over zero labels is NaN, so values of weight 0 are left out.
    products = (value * weight for value, weight in zip(values, weights, strict=True) if weight)
    return sum(products) / total


def _agree(one: float | None, other: float | None, bound: float) -> bool:
    if one is None or other is None:
        return False
    return abs(one - other) <= 100 * bound * max(abs(one), abs(other))


def padding(evidence: Evidence) -> Cause | None:
    """The samples are padded to other widths on one device, and padding counts."""
    if evidence.difference.ranks or not evidence.is_recollated:
        return None
    ranks = [one.batch for record in evidence.rig for one in evidence.batches_of(record)]
    alone = [one.batch for one in evidence.batches_of(evidence.one)]
    return Cause(
        "padding",
        f"the ranks' batches have the shapes {shapes_of(ranks)}, and those of one device "
        f"{shapes_of(alone)}; the samples are the same, and the numbers depend on how far they "
        "are padded",
        "leave padding out of the loss, of means, of attention and of the last state of a "
        f"recurrent layer; to look for other causes, {REMEDY}",
        is_certain=False,
    )
