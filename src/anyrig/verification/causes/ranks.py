"""Causes for which the ranks' copies of a tensor differ."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..bounds import differs
from ..comparison import GRADIENT, INITIAL, PARAMETER
from ..evidence import Evidence
from ..joining import Joined
from ..records import NO_MODULE
from ..verdict import Cause


def different_initial_values(evidence: Evidence) -> Cause | None:
    """The ranks begin with different values of a parameter that each has as a whole."""
    difference = evidence.difference
    if difference.kind != INITIAL:
        return None
    return Cause(
        "initial-values",
        f"ranks {_pair(difference.ranks)} begin with different values of {difference.name}",
        "wrap the model in DistributedDataParallel, which sends rank 0's values to all, before the "
        "optimizer is made; or broadcast the parameters; or seed all ranks alike while the model "
        "is made",
    )


def scaled_by_each_rank(evidence: Evidence) -> Cause | None:
    """Each rank multiplied its gradients by its own number, as clipping by a local norm does."""
    if evidence.difference.kind != GRADIENT:
        return None
    factors: dict[int, float] = {}
    for name in evidence.difference.names:
        for rank, (part, expected) in _parts(evidence.tensors.joined[name], evidence, name).items():
            factor = evidence.factor(part, name, expected)
            if factor is None:
                if float(expected.norm()) <= evidence.limit(name):
                    continue
                return None
            if rank in factors and abs(factors[rank] - factor) > 1e-3 * abs(factor):
                return None
            factors[rank] = factor
    if len(factors) < 2 or _is_equal([*factors.values()]):
        return None
    shown = ", ".join(f"rank {rank} by {factor:.4g}" for rank, factor in sorted(factors.items()))
    return Cause(
        "local-norm",
        f"the gradients of each rank are multiplied by a number of its own: {shown}. Clipping by "
        "the norm of what one rank holds does this, and so does a gradient scaler whose scales "
        "differ",
        "compute the norm over the parts of all ranks, each once: torch.nn.utils.clip_grad_norm_ "
        "does for DTensors; otherwise all_reduce the squares of the norms before the root. Keep "
        "one scale on all ranks",
    )


def never_reduced(evidence: Evidence) -> Cause | None:
    """Each rank kept the gradient of its own samples."""
    difference = evidence.difference
    if difference.kind != GRADIENT or not difference.ranks:
        return None
    kept = [name for name in difference.names if evidence.tensors.joined[name].copies]
    operation = _operation_that_would_do(evidence, kept)
    if operation is None:
        return None
    which = _which(evidence, kept)
    if operation == "sum":
        return Cause(
            "partial-sum",
            f"the gradient of {which} was never summed over the ranks: each rank has its part, and "
            "the sum is the gradient on one device",
            "all_reduce these gradients with the sum before the optimizer's step. Parameters that "
            "each rank uses for its part of a sequence or of the features need this, such as "
            "layer norms under sequence parallelism",
        )
    return Cause(
        "never-reduced",
        f"the gradient of {which} was never reduced: each rank has that of its own samples, and "
        f"the {operation} over the ranks is the gradient on one device",
        how_to_reduce(evidence, kept),
    )


def ranks_disagree(evidence: Evidence) -> Cause | None:
    """The copies differ, and nothing more is known."""
    difference = evidence.difference
    if not difference.ranks:
        return None
    if difference.kind == PARAMETER:
        return Cause(
            "different-updates",
            f"ranks {_pair(difference.ranks)} have different values of {difference.name} after "
            "equal gradients: their optimizers differ",
            "make the optimizer with the same settings and the same state on all ranks, and step "
            "on all ranks",
        )
    return Cause(
        "ranks-disagree",
        f"ranks {_pair(difference.ranks)} have different gradients of {difference.name}",
        "reduce the gradients of all ranks alike before the optimizer's step; under "
        "DistributedDataParallel, the last micro-batch before each step must be outside of "
        "no_sync(), also at the end of an epoch",
    )


def _operation_that_would_do(evidence: Evidence, names: list[str]) -> str | None:
    """Return how the ranks' copies would make up the gradient on one device, or None."""
    if not names:
        return None
    counts = [sum(len(call) for call in step.forwards) for step in evidence.rank_steps]
    shares = {
        "mean": [1 / evidence.world_size] * evidence.world_size,
        "sum": [1.0] * evidence.world_size,
    }
    if sum(counts) and len(set(counts)) > 1:
        shares["mean, weighted by samples,"] = [count / sum(counts) for count in counts]
    for operation, weights in shares.items():
        if all(_makes_up(evidence, name, weights) for name in names):
            return operation
    return None


def _makes_up(evidence: Evidence, name: str, weights: list[float]) -> bool:
    copies = evidence.tensors.joined[name].copies
    total = sum(weights[position] * copy.double() for position, copy in enumerate(copies.values()))
    if not isinstance(total, Tensor) or len(copies) != len(weights):
        return False
    return not differs(total, evidence.tensors.expected[name], 10 * evidence.limit(name))


def _parts(joined: Joined, evidence: Evidence, name: str) -> Mapping[int, tuple[Tensor, Tensor]]:
    """Return what each rank has, with the same part of the gradient on one device."""
    expected = evidence.tensors.expected[name].double()
    if joined.copies:
        return {rank: (copy, expected) for rank, copy in joined.copies.items()}
    parts = {}
    for rank, piece in joined.pieces.items():
        if piece.shape != tuple(expected.shape):
            return _concatenated_parts(joined, expected)
        place = torch.zeros_like(expected)
        piece.paste_into(place)
        mask = torch.zeros_like(expected)
        ones = type(piece)(
            torch.ones_like(piece.values), piece.shape, piece.start, flat_start=piece.flat_start
        )
        ones.paste_into(mask)
        parts[rank] = place, expected * mask
    return parts


def _concatenated_parts(joined: Joined, expected: Tensor) -> Mapping[int, tuple[Tensor, Tensor]]:
    shapes = [piece.shape for piece in joined.pieces.values()]
    dimension = next(
        d for d in range(expected.dim()) if sum(s[d] for s in shapes) == expected.shape[d]
    )
    cut = torch.split(expected, [shape[dimension] for shape in shapes], dimension)
    return {
        rank: (piece.values, part)
        for (rank, piece), part in zip(joined.pieces.items(), cut, strict=True)
    }


def _is_equal(values: list[float]) -> bool:
    return max(values) - min(values) <= 1e-6 * max(abs(value) for value in values)


def how_to_reduce(evidence: Evidence, names: list[str]) -> str:
    """Return what to change so that the gradients of these parameters are averaged."""
    of_no_module = [name for name in names if _has_no_module(evidence, name)]
    remedies = []
    if of_no_module:
        remedies.append(
            f"no module has {_listed(evidence, of_no_module)}, and DistributedDataParallel reduces "
            "only the parameters of its module: create such parameters in the model's __init__, "
            "as self.name = nn.Parameter(...)"
        )
    if len(of_no_module) < len(names):
        remedies.append(
            "have these parameters in the module that DistributedDataParallel wraps, and wrap it "
            "after the last change of its parameters; call the wrapper itself, not model.module "
            "and not model.forward; leave no_sync() for the last micro-batch"
        )
    return "; ".join([*remedies, "or all_reduce these gradients with the mean"])


def _which(evidence: Evidence, names: list[str]) -> str:
    if len(names) == len(evidence.tensors.joined):
        return "all parameters"
    return _listed(evidence, names)


def _listed(evidence: Evidence, names: list[str]) -> str:
    shown = ", ".join(_described(evidence, name) for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _described(evidence: Evidence, name: str) -> str:
    """Return a parameter's name, followed by its shape if the parameter is in no module."""
    if not _has_no_module(evidence, name):
        return name
    return f"{name} of shape {tuple(evidence.tensors.expected[name].shape)}"


def _has_no_module(evidence: Evidence, name: str) -> bool:
    facts = evidence.rig[0].parameters.get(name)
    return facts is not None and facts.module == NO_MODULE


def _pair(ranks: tuple[int, ...]) -> str:
    return " and ".join(map(str, ranks))
