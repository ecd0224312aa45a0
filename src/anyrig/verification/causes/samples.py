"""Causes by which the ranks choose or weigh samples differently from one device."""

from __future__ import annotations

from collections.abc import Sequence

from ...units import format_count
from ..comparison import INITIAL
from ..evidence import Evidence
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


def unequal_counts(evidence: Evidence) -> Cause | None:
    """Means over unequal numbers of tokens or samples were averaged as if they were equal."""
    if evidence.difference.ranks or evidence.difference.kind == INITIAL:
        return None
    losses = [loss.value for step in evidence.rank_steps for loss in step.losses]
    one_losses = [loss.value for loss in evidence.one_step.losses]
    for noun, of_ranks, of_one in _candidate_counts(evidence):
        if len(of_ranks) != len(losses) or len(set(of_ranks)) < 2:
            continue
        if len(of_one) != len(one_losses):
            of_one = [1] * len(one_losses)
        is_certain = bool(losses) and _agree(
            _weighted(losses, of_ranks), _weighted(one_losses, of_one), evidence.comparison.bound
        )
        if not is_certain and evidence.difference.kind != "gradient":
            continue
        shown = ", ".join(map(str, of_ranks[:8])) + (", …" if len(of_ranks) > 8 else "")
        where = "ranks" if evidence.micro_batches == 1 else "ranks and micro-batches"
        return Cause(
            "unequal-counts",
            f"the {where} average over unequal numbers of {noun} ({shown}), and the mean of their "
            f"means is not the mean over all {noun}",
            f"add up the losses of the {noun} (reduction='sum'), and divide by the number of "
            f"{noun} in all ranks and micro-batches of the step, times the world size where DDP or "
            "FSDP averages; or use anyrig.spread(model, loss=criterion)",
            is_certain,
        )
    return None


def _candidate_counts(
    evidence: Evidence,
) -> list[tuple[str, list[int], list[int]]]:
    labels = [count for step in evidence.rank_steps for count in step.labels]
    samples = [len(call) for step in evidence.rank_steps for call in step.forwards]
    one = evidence.one_step
    return [
        ("tokens", labels, [*one.labels]),
        ("samples", samples, [len(call) for call in one.forwards]),
    ]


def _weighted(values: Sequence[float], weights: Sequence[int]) -> float | None:
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
