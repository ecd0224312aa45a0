"""From the records of two runs to a verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import VerificationError
from .bounds import norm
from .causes.factors import constant_factor, learning_rate
from .causes.modules import (
    batch_norm_by_rank,
    missing_gradient,
    same_dropout_on_all_ranks,
    unknown,
)
from .causes.own_gradients import changed_and_never_reduced, scaled_before_reduction
from .causes.ranks import (
    different_initial_values,
    never_reduced,
    ranks_disagree,
    scaled_by_each_rank,
)
from .causes.samples import (
    padding,
    repeated_or_missed,
    same_samples_everywhere,
    unequal_counts,
)
from .comparison import PARAMETER, Comparison, compare
from .evidence import Evidence, sample_facts
from .pipeline_stages import ranks_of_first_stage
from .records import RankRecord
from .verdict import Cause, Finding, Verdict

# The first cause that explains a difference is reported, so causes that the numbers prove come
# first.
_CAUSES: tuple[Callable[[Evidence], Cause | None], ...] = (
    different_initial_values,
    repeated_or_missed,
    missing_gradient,
    never_reduced,
    scaled_by_each_rank,
    constant_factor,
    learning_rate,
    scaled_before_reduction,
    unequal_counts,
    batch_norm_by_rank,
    padding,
    changed_and_never_reduced,
    ranks_disagree,
)


def judge(rig: Sequence[RankRecord], one: RankRecord) -> Verdict:
    """Return the verdict on the records of the ranks of a rig and of one device."""
    rig = sorted(rig, key=lambda record: record.rank)
    try:
        comparison = compare(rig, one)
        finding = _finding(rig, one, comparison)
    except VerificationError as error:
        return Verdict(2, reason=str(error), world_size=len(rig))
    return Verdict(
        0 if finding is None else 1,
        finding,
        steps=comparison.steps,
        world_size=len(rig),
        dtype=comparison.dtype,
        bound=comparison.bound,
        losses=_losses(rig, one, comparison.steps),
        notes=_notes(rig, one),
    )


def _finding(rig: Sequence[RankRecord], one: RankRecord, comparison: Comparison) -> Finding | None:
    if comparison.difference is not None:
        return _explain(rig, one, comparison)
    return _dead(rig, one, comparison.steps) or _common_mistake(rig, one, comparison.steps)


def _explain(rig: Sequence[RankRecord], one: RankRecord, comparison: Comparison) -> Finding:
    evidence = Evidence(rig, one, comparison)
    difference = evidence.difference
    cause = next((found for find in _CAUSES if (found := find(evidence)) is not None), None)
    if cause is None or not cause.is_certain:
        _check_comparable(evidence)
    cause = cause or unknown(evidence)
    name = cause.tensor or difference.name
    facts = rig[0].parameters.get(name) or one.parameters.get(name)
    steps = [record.steps[difference.step - 1] for record in rig]
    called = facts.line if facts else None
    if difference.kind == PARAMETER:
        called = next((step.line for step in steps if step.line is not None), called)
    losses = [loss.line for step in steps for loss in step.losses]
    return Finding(
        cause,
        difference.kind,
        name,
        facts.module if facts else None,
        called,
        next((line for line in losses if line is not None), None),
        difference.step,
        difference.error if name == difference.name else 1.0,
        len(difference.names) - 1,
    )


def _check_comparable(evidence: Evidence) -> None:
    """Raise a `VerificationError` if the runs differ in their samples or random numbers."""
    facts = evidence.samples
    if facts.is_known and facts.rig_has_others:
        raise VerificationError(
            f"in step {evidence.difference.step} the ranks computed {sum(facts.rig.values())} "
            f"samples, and one device {sum(facts.one.values())}, which are not the same; load the "
            "samples with a DataLoader, whose batches are repeated on one device, or give the "
            'script other arguments there: --single-arguments "--batch-size 32"'
        )
    if any(record.draws_random_numbers for record in (*evidence.rig, evidence.one)):
        raise VerificationError(
            f"{evidence.difference.name} differs, and the model draws random numbers in its "
            "forward pass, which are not the same on the ranks and on one device; draw them in "
            "the data set, or turn this part off for the comparison"
        )


def _dead(rig: Sequence[RankRecord], one: RankRecord, steps: int) -> Finding | None:
    """Return why the agreement says nothing, if neither run trains."""
    records = one.steps[:steps]
    line = records[0].line
    earlier = records[0].before
    is_unchanged = all(
        piece.values.equal(earlier[name].values)
        for step in records
        for name, piece in step.after.items()
        if name in earlier
    )
    # An optimizer with a closure has gradients only within its step, and changes parameters.
    if is_unchanged and not any(
        norm(piece.values) for step in records for piece in step.gradients.values()
    ):
        return Finding(
            Cause(
                "no-gradient-at-all",
                "no parameter gets a gradient, neither on the rig nor on one device",
                "call loss.backward() before the optimizer's step, on a loss that is not detached, "
                "and give the optimizer the parameters of the model that computes it",
            ),
            line=line,
        )
    if is_unchanged:
        return Finding(
            Cause(
                "no-update",
                "no parameter changes in any step, neither on the rig nor on one device",
                "the learning rate is zero, or the optimizer has other parameters than the model; "
                "give --steps beyond a warm-up that begins at zero",
            ),
            line=line,
        )
    losses = [[loss.value for loss in step.losses] for step in records]
    if steps > 1 and losses[0] and all(each == losses[0] for each in losses):
        return Finding(
            Cause(
                "constant-loss",
                f"the loss is {losses[0][0]:.6g} in each of {steps} steps, though parameters "
                "change",
                "the loss does not depend on these parameters; check what it is computed from",
            ),
            backward_line=records[0].losses[0].line,
        )
    return None


def _common_mistake(rig: Sequence[RankRecord], one: RankRecord, steps: int) -> Finding | None:
    """Return a mistake that leaves the gradients correct."""
    everyone, rig = rig, ranks_of_first_stage(rig)
    which = " with the first stage of the pipeline" if len(rig) < len(everyone) else ""
    if len(rig) < 2:
        return None
    for number in range(steps):
        of_ranks = [record.steps[number] for record in rig]
        facts = sample_facts(of_ranks, one.steps[number])
        line = next((loss.line for step in of_ranks for loss in step.losses), None)
        if facts.is_same_on_all_ranks:
            if _each_has_the_whole_model(rig):
                cause = same_samples_everywhere(number + 1, len(rig), which)
                return Finding(cause, backward_line=line, step=number + 1)
            continue
        states = {step.random_states for step in of_ranks}
        have_own_samples = len({tuple(sorted(each)) for each in facts.by_rank}) == len(rig)
        if of_ranks[0].random_states and len(states) == 1 and have_own_samples:
            cause = same_dropout_on_all_ranks(number + 1, len(rig))
            return Finding(cause, backward_line=line, step=number + 1)
    return None


def _each_has_the_whole_model(rig: Sequence[RankRecord]) -> bool:
    if all(record.shards_data for record in rig):
        return True
    names = {frozenset(record.steps[0].after) for record in rig}
    shapes = [
        {name: piece.values.shape for name, piece in record.steps[0].after.items()}
        for record in rig
    ]
    return (
        len(names) == 1
        and all(one == shapes[0] for one in shapes)
        and all(p.is_whole for record in rig for p in record.steps[0].after.values())
    )


def _losses(
    rig: Sequence[RankRecord], one: RankRecord, steps: int
) -> tuple[tuple[float | None, float | None], ...]:
    def mean(values: list[float]) -> float | None:
        return sum(values) / len(values) if values else None

    return tuple(
        (
            mean([loss.value for record in rig for loss in record.steps[number].losses]),
            mean([loss.value for loss in one.steps[number].losses]),
        )
        for number in range(steps)
    )


def _notes(rig: Sequence[RankRecord], one: RankRecord) -> tuple[str, ...]:
    notes = []
    if any(record.has_dropout for record in rig):
        notes.append("dropout was off in both runs; only its random states were compared")
    if any(batch.is_recollated for batch in one.batches):
        notes.append(
            "the ranks' batches have different shapes, so on one device the loader's collate "
            "function made its batches from the same samples"
        )
    counts = {len(record.steps) for record in (*rig, one)}
    if len(counts) > 1:
        notes.append("the runs have different numbers of steps; the first ones were compared")
    if _accumulates(one) and not _has_end_of_epoch(rig):
        notes.append(
            "gradients are accumulated, and no epoch ended within these steps, so a step with an "
            "epoch's last micro-batches was not compared; compare more steps, or use a smaller "
            "data set"
        )
    return tuple(notes)


def _accumulates(record: RankRecord) -> bool:
    return any(len(step.losses) > 1 for step in record.steps)


def _has_end_of_epoch(rig: Sequence[RankRecord]) -> bool:
    """Return whether an iteration over a loader ended. It is True, too, if no loader was used."""
    batches = [batch for record in rig for batch in record.batches]
    return not batches or any(batch.batch is None for batch in batches)
