"""Causes in particular modules: batch norm, dropout, parameters without a gradient."""

from __future__ import annotations

from ..bounds import norm
from ..comparison import GRADIENT
from ..evidence import Evidence
from ..verdict import Cause


def batch_norm_by_rank(evidence: Evidence) -> Cause | None:
    """Batch norm uses the mean and variance of one rank's samples."""
    norms = next((record.batch_norms for record in evidence.rig if record.batch_norms), ())
    if not norms or evidence.difference.kind != GRADIENT or evidence.samples.is_same_on_all_ranks:
        return None
    return Cause(
        "batch-norm",
        f"the batch norm {norms[0]} uses the mean and the variance of each device's samples alone",
        "call torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) before the model is wrapped, or "
        "spread it with plan=anyrig.Replicas(sync_batch_norm=True); if the statistics of each "
        "device's part are what you want, verify with these modules in eval mode",
        is_certain=False,
    )


def same_dropout_on_all_ranks(step: int, ranks: int) -> Cause:
    """The ranks draw the same dropout masks for different samples."""
    return Cause(
        "same-dropout",
        f"the {ranks} ranks draw their dropout masks in step {step} from the same random state, so "
        "different samples get the same masks",
        "after the model is made, seed each rank differently: torch.manual_seed(seed + rank)",
    )


def missing_gradient(evidence: Evidence) -> Cause | None:
    """A parameter that one device trains gets no gradient on the rig."""
    if evidence.difference.kind != GRADIENT:
        return None
    tensors = evidence.tensors
    names = (
        name
        for name in evidence.difference.names
        if norm(tensors.joined[name].whole) == 0 and norm(tensors.expected[name]) > 0
    )
    name = next(names, None)
    if name is None:
        return None
    return Cause(
        "no-gradient",
        f"{name} gets no gradient on the rig, and one device trains it",
        "look for detach(), torch.no_grad() or .data between this module and the loss on the rig, "
        "such as a collective of torch.distributed, through which no gradient flows; use "
        "torch.distributed.nn.functional or DTensor",
        tensor=name,
    )


def unknown(evidence: Evidence) -> Cause:
    """No other cause explains the difference."""
    return Cause(
        "unknown",
        f"the {evidence.difference.kind} differs, and by no constant factor",
        "compare what the ranks and one device compute up to this module",
        is_certain=False,
    )
