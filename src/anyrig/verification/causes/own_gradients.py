"""What ranks did to their own gradients: before they were reduced, or instead of reducing them.

::

    g_r          rank r's gradient right after its last backward pass
    one device   share * (g_0 + g_1 + ...)        right after its last backward pass
    rig          a_0 * g_0 + a_1 * g_1 + ...      what the optimizer received

If one share and one number a_r for each rank hold for all parameters, the ranks computed what one
device computed, and rank r multiplied its gradients by a_r / share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..bounds import allowed, differs, norm_of_all
from ..comparison import GRADIENT
from ..evidence import Evidence
from ..records import StepRecord
from ..verdict import Cause
from .ranks import how_to_reduce

# The least eigenvalue of the matrix of cosines between the ranks' gradients. With a smaller one,
# the gradients are nearly dependent, so that other numbers of the ranks fit nearly as well.
_LEAST_EIGENVALUE = 1e-6


def scaled_before_reduction(evidence: Evidence) -> Cause | None:
    """Each rank multiplied its gradients by its own number, and then they were reduced."""
    difference = evidence.difference
    if difference.kind != GRADIENT or difference.ranks or evidence.world_size < 2:
        return None
    found = _own_gradients(evidence)
    if found is None:
        return None
    own, share = found
    factors = own.factors_of(_reduced(evidence), _bound(evidence), share)
    # Ranks whose gradients are left out of the sum, or subtracted, are another mistake.
    if factors is None or min(factors) <= 1e-6 * max(factors):
        return None
    shown = ", ".join(f"rank {rank} by {factor:.4g}" for rank, factor in enumerate(factors))
    return Cause(
        "local-norm",
        "each rank multiplied its gradients by a number of its own before they were reduced: "
        f"{shown}. Clipping by the norm of a rank's own gradients does this, and so does a weight "
        "for each rank",
        "reduce first, then clip by the norm of the reduced gradients, which is the same on all "
        "ranks: call torch.distributed.all_reduce(p.grad, op=ReduceOp.AVG) for all parameters, "
        "and then torch.nn.utils.clip_grad_norm_. With DistributedDataParallel, call it after the "
        "step's last backward(), outside no_sync(): that backward() reduces the gradients",
    )


def changed_and_never_reduced(evidence: Evidence) -> Cause | None:
    """Each rank scaled the gradients of its own samples, as clipping does, and none were reduced.

    The gradients that an optimizer received then point where its rank's last backward pass did.
    """
    difference = evidence.difference
    if difference.kind != GRADIENT or not difference.ranks:
        return None
    found = _own_gradients(evidence)
    if found is None or not _are_multiples(evidence, found[0]):
        return None
    own, _ = found
    differing = [
        name for name, rows in own.rows.items() if not rows.equal(rows[:1].expand_as(rows))
    ]
    if not differing:
        return None
    return Cause(
        "never-reduced",
        "the gradients were never reduced: each rank has scaled those of its own samples, as "
        "clipping does. Their sum before that is the gradient on one device, up to a factor",
        how_to_reduce(evidence, differing),
    )


def _bound(evidence: Evidence) -> float:
    return evidence.comparison.bound * evidence.difference.step


def _are_multiples(evidence: Evidence, own: _OwnGradients) -> bool:
    """Return whether each rank's optimizer received multiples of the rank's own gradients."""
    for rank, step in enumerate(evidence.rank_steps):
        final = _gradients_of(replace(step, after_backward={}), evidence)
        if final is None:
            return False
        rows = {name: each[rank] for name, each in own.rows.items()}
        made = {name: row * _ratio(final[name], row) for name, row in rows.items()}
        if not _agree(made, final, _bound(evidence)):
            return False
    return True


def _ratio(vector: Tensor, to: Tensor) -> Tensor:
    """Return the multiple of `to` that is nearest to a vector."""
    return (vector @ to) / (to @ to).clamp_min(torch.finfo(to.dtype).tiny)


@dataclass(frozen=True)
class _OwnGradients:
    """The gradients of all ranks before the reduction.

    Attributes:
        rows: for each parameter, a matrix with a row for each rank.
    """

    rows: Mapping[str, Tensor]

    def share_of(self, targets: Mapping[str, Tensor], bound: float) -> float | None:
        """Return the number by which the sum over the ranks makes up the targets, or None."""
        total = {name: rows.sum(0) for name, rows in self.rows.items()}
        square = sum(float(one @ one) for one in total.values())
        if square == 0:
            return None
        share = sum(float(one @ targets[name]) for name, one in total.items()) / square
        made = {name: share * one for name, one in total.items()}
        return share if _agree(made, targets, bound) else None

    def factors_of(
        self, targets: Mapping[str, Tensor], bound: float, share: float
    ) -> list[float] | None:
        """Return a number for each rank by which it multiplied its part of the targets.

        None if no numbers make up the targets, or if one number for all ranks nearly does.
        """
        if self.share_of(targets, 10 * bound) is not None:
            return None
        weights = self._weights_of(targets)
        if weights is None:
            return None
        made = {name: weights @ rows for name, rows in self.rows.items()}
        return [float(one) / share for one in weights] if _agree(made, targets, bound) else None

    def _weights_of(self, targets: Mapping[str, Tensor]) -> Tensor | None:
        """Return the weights of the ranks with the least squares; None if several fit."""
        every = [*self.rows.values()]
        products = torch.stack([rows @ rows.T for rows in every]).sum(0)
        used = sum(int(rows.any(0).sum()) for rows in every)
        norms = products.diagonal().sqrt()
        # With no more equations than ranks, weights fit any gradient.
        if used <= len(norms) or not products.isfinite().all() or not norms.all():
            return None
        cosines = products / norms.outer(norms)
        if torch.linalg.eigvalsh(cosines)[0] < _LEAST_EIGENVALUE:
            return None
        of_targets = torch.stack([rows @ targets[name] for name, rows in self.rows.items()]).sum(0)
        weights: Tensor = torch.linalg.solve(cosines, of_targets / norms) / norms
        return weights


def _own_gradients(evidence: Evidence) -> tuple[_OwnGradients, float] | None:
    """Return the gradients of the ranks, and the share of their sum that one device had.

    Return None if one device had something else, or if a rank has only a part of a parameter.
    """
    ranks = [_gradients_of(step, evidence) for step in evidence.rank_steps]
    known = [one for one in ranks if one is not None]
    alone = _gradients_of(evidence.one_step, evidence)
    if alone is None or len(known) < len(ranks):
        return None
    names = evidence.tensors.joined
    own = _OwnGradients({name: torch.stack([one[name] for one in known]) for name in names})
    share = own.share_of(alone, _bound(evidence))
    return None if share is None else (own, share)


def _gradients_of(step: StepRecord, evidence: Evidence) -> Mapping[str, Tensor] | None:
    """Return a process's flat gradients after its last backward pass, if it has whole ones."""
    found = {}
    for name, expected in evidence.tensors.expected.items():
        piece = step.after_backward.get(name, step.gradients.get(name))
        if piece is None:
            found[name] = torch.zeros(expected.numel(), dtype=torch.float64)
        elif piece.is_whole and piece.shape == tuple(expected.shape):
            found[name] = piece.values.double().flatten()
        else:
            return None
    return found


def _reduced(evidence: Evidence) -> Mapping[str, Tensor]:
    """Return the flat gradients that the ranks' optimizers received."""
    joined = evidence.tensors.joined
    return {name: one.whole.double().flatten() for name, one in joined.items()}


def _agree(made: Mapping[str, Tensor], targets: Mapping[str, Tensor], bound: float) -> bool:
    everything = norm_of_all(targets)
    return not any(
        differs(made[name], target, allowed(bound, 1, target, everything))
        for name, target in targets.items()
    )
