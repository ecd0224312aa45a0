"""Causes by which gradients or updates are multiplied by one number."""

from __future__ import annotations

import math

from ..comparison import GRADIENT, PARAMETER
from ..evidence import Evidence
from ..verdict import Cause

_SMALLEST_SCALE = 128.0
_NEAR = 1e-4  # how near a whole number a factor must be, relative to it
_TIMES = "\u00d7"


def constant_factor(evidence: Evidence) -> Cause | None:
    """All gradients that differ are the same multiple of those on one device."""
    if evidence.difference.kind != GRADIENT or evidence.difference.ranks:
        return None
    factor = _common_factor(evidence)
    if factor is None or abs(factor) < 1e-6:
        return None
    names = evidence.difference.names
    others = [name for name in evidence.tensors.joined if name not in names]
    trained = [name for name in others if _is_trained(evidence, name)]
    which = names[0] if len(names) == 1 else f"{len(names)} parameters"
    subject = f"only the gradient of {which} is" if trained else "all gradients are"
    factor, is_certain = _without_rounding(factor, evidence.comparison.bound)
    stage = _lone_stage(evidence)
    if stage is not None:
        return Cause(
            "factor",
            f"only gradients of pipeline stage {stage} are {_written(factor)} what one device "
            "computes; its parameters are on one rank alone, so no sum over ranks is the cause",
            "look in the code of this rank for what multiplies its gradients or its loss, or adds "
            "to gradients of an earlier step",
            is_certain,
        )
    ranks, batches = evidence.world_size, evidence.micro_batches
    text, remedy = _explain(factor, ranks, batches, is_subset=bool(trained))
    text = f"{subject} {_written(factor)} what one device computes: {text}"
    return Cause("factor", text, remedy, is_certain)


def _lone_stage(evidence: Evidence) -> int | None:
    """Return the pipeline stage of all parameters that differ, if it is on one rank; else None."""
    different = set(evidence.difference.names)
    owners = [
        {name: facts.stage for name, facts in record.parameters.items() if name in different}
        for record in evidence.rig
    ]
    holding = [owner for owner in owners if owner]
    stages = set(holding[0].values()) if len(holding) == 1 else set()
    return stages.pop() if len(stages) == 1 else None


def learning_rate(evidence: Evidence) -> Cause | None:
    """The updates are a multiple of those on one device, after equal gradients."""
    if evidence.difference.kind != PARAMETER or evidence.difference.ranks:
        return None
    step = evidence.difference.step
    earlier = evidence.one.steps[step - 2].after if step > 1 else evidence.one.steps[0].before
    ratios = []
    for name in evidence.difference.names:
        if name not in earlier:
            return None
        start = earlier[name].values.double()
        moved = evidence.tensors.expected[name].double() - start
        ratio = evidence.factor(evidence.tensors.joined[name].whole.double() - start, name, moved)
        if ratio is None:
            return None
        ratios.append(ratio)
    bound = evidence.comparison.bound
    if max(ratios) - min(ratios) > max(1e-4, bound) * max(map(abs, ratios)):
        return None
    ratio, is_certain = _without_rounding(ratios[0], bound)
    return Cause(
        "learning-rate",
        f"after equal gradients, each update is {_written(ratio)} that on one device",
        "use one learning rate for one global batch. If the script multiplies it by the number of "
        "ranks on purpose, give the run on one device the same rate with --single-arguments",
        is_certain,
    )


def _common_factor(evidence: Evidence) -> float | None:
    factors = [
        evidence.factor(evidence.tensors.joined[name].whole, name)
        for name in evidence.difference.names
    ]
    known = [factor for factor in factors if factor is not None]
    if not known or len(known) < len(factors):
        return None
    if max(known) - min(known) > max(1e-3, evidence.comparison.bound) * max(map(abs, known)):
        return None
    return sum(known) / len(known)


def _without_rounding(factor: float, bound: float) -> tuple[float, bool]:
    """Return (the exact factor, whether it is certain) behind a factor with rounding errors.

    The exact factor is a whole number or the inverse of one, if one is near. It is not certain if
    types as coarse as bfloat16 leave other factors possible.
    """
    for whole, inverse in ((round(factor), False), (round(1 / (factor or 1)), True)):
        exact = 1 / whole if inverse and whole else float(whole)
        if whole >= 1 and abs(factor - exact) <= max(_NEAR, bound / 10) * exact:
            return exact, abs(factor - exact) <= _NEAR * exact
    return factor, True


def _is_trained(evidence: Evidence, name: str) -> bool:
    return float(evidence.tensors.expected[name].double().norm()) > evidence.limit(name)


def _explain(factor: float, ranks: int, batches: int, *, is_subset: bool) -> tuple[str, str]:
    """Return what a factor means, and what to change."""
    whole = _nearest_whole(factor)
    inverse = _nearest_whole(1 / factor)
    if whole is not None and whole == ranks and ranks > 1:
        if is_subset:
            return (
                f"summed over the {ranks} ranks, not averaged, or reduced once too often",
                "divide these gradients by the number of ranks, or reduce them only once. Expert "
                "parameters get the tokens of all ranks, so their gradients are already sums",
            )
        return (
            f"summed over the {ranks} ranks, not averaged",
            "divide by the number of ranks: all_reduce with ReduceOp.AVG, or the loss by the world "
            "size; drop a factor of the world size in the loss unless it cancels DDP's mean",
        )
    if inverse is not None and inverse == ranks and ranks > 1:
        return (
            f"divided by the {ranks} ranks once too often",
            "DDP and FSDP average over the ranks. A loss that is already divided by the samples or "
            "tokens of the whole batch must be multiplied by the world size, or the gradients "
            "summed (set_gradient_divide_factor(1.0) of FSDP2)",
        )
    if whole is not None and 1 < whole == batches:
        return (
            f"summed over the {batches} micro-batches, not averaged",
            f"divide each loss by {batches}",
        )
    if inverse is not None and 1 < inverse == batches:
        return (
            f"divided by the {batches} micro-batches once too often",
            "divide each loss by the number of micro-batches in one place only",
        )
    if whole is not None and 1 < whole < ranks and ranks % whole == 0:
        return (
            f"summed over groups of {whole} of the {ranks} ranks, not averaged",
            "divide by the size of the group over which these gradients are reduced",
        )
    if inverse is not None and 1 < inverse < ranks and ranks % inverse == 0:
        return (
            f"divided by a group of {inverse} of the {ranks} ranks once too often",
            "divide by the size of one group only",
        )
    if factor >= _SMALLEST_SCALE and math.log2(factor).is_integer():
        return (
            "the gradients still have the scale of a gradient scaler",
            "call scaler.unscale_(optimizer) or scaler.step(optimizer)",
        )
    return (
        "clipped by another norm, or a weight of the loss depends on the ranks",
        "clip by the norm of the whole gradient, each parameter counted once; look for the number "
        f"{factor:.6g} among the weights of the loss",
    )


def _nearest_whole(value: float) -> int | None:
    nearest = round(value)
    return nearest if nearest >= 1 and abs(value - nearest) <= _NEAR * nearest else None


def _written(factor: float) -> str:
    whole, inverse = _nearest_whole(factor), _nearest_whole(1 / factor) if factor else None
    if whole is not None:
        return f"{_TIMES}{whole}"
    return f"{_TIMES}1/{inverse}" if inverse is not None else f"{_TIMES}{factor:.6g}"
