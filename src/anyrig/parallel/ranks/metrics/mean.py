"""The mean over all ranks, weighted by what each rank counted."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ....errors import RankMismatchError
from ....processes.group.membership import join_group
from ....transfer.leaves import GO_IN, leaves_of, replace_parts
from ....transfer.tree import format_path
from ...parts.cut import is_dense
from .exchange import Contribution, agree

_CALL = "mean_over_ranks()"


def mean_over_ranks(value: Any, weight: float | Tensor | None = None) -> Any:
    """Return the mean over all ranks of every number and tensor of a nested value, on every rank.

    ::

        accuracy = anyrig.mean_over_ranks(correct / samples, weight=samples)
        metrics = anyrig.mean_over_ranks({"loss": loss, "accuracy": accuracy}, weight=samples)

    The result is ``sum(weight * value) / sum(weight)``, computed in float64. With the number of
    samples of each rank as its weight, the result is the mean over all samples. A value of weight
    zero does not count, even if it is NaN. If all weights are zero, the result is NaN.

    The structure stays. Numbers become float or complex. Tensors are averaged elementwise; they
    keep their shape, device and floating dtype, and have no graph. Integer tensors get the default
    dtype. Strings and None must be equal on every rank. The ranks use two small collectives, and
    one for all values. In a process that is the only rank, the result is the mean of its own value.

    Args:
        value: numbers, tensors, or dicts, lists, tuples, named tuples and dataclasses of them.
        weight: how much this rank's value counts, zero or more; None weights all ranks equally.

    Raises:
        RankMismatchError: on every rank, if two ranks differ in structure or shape, or a value has
            no mean. The message says which rank, and where.
    """
    group = join_group()
    own_weight = 1.0 if weight is None else float(weight)
    leaves = leaves_of(value)
    error = _explain_refusal(leaves, own_weight)
    device = torch.device("cpu")
    if group is not None:
        kinds = frozenset(leaf.device.type for _, leaf in leaves if isinstance(leaf, Tensor))
        outline = ["no weight" if weight is None else "a weight"]
        outline += [f"{_describe(leaf)} at {place}" for place, leaf in leaves]
        _, device = agree(group, Contribution(_CALL, outline, error, kinds))
    elif error:
        raise RankMismatchError(f"{_CALL}: {error}")
    averaged = [(place, leaf) for place, leaf in leaves if isinstance(leaf, (Tensor, Number))]
    one = torch.ones(1, dtype=torch.float64, device=device)
    parts = [one, *(_to_double(leaf).to(device) for _, leaf in averaged)]
    vector = parameters_to_vector(parts)
    # Not a product: NaN times zero is NaN.
    total = vector * own_weight if own_weight else torch.zeros_like(vector)
    if group is not None:
        dist.all_reduce(total)
    vector_to_parameters(total / total[0], parts)
    means = {
        place: _convert_like(leaf, mean)
        for (place, leaf), mean in zip(averaged, parts[1:], strict=True)
    }
    return replace_parts(value, lambda _, path: means.get(format_path(path), GO_IN))


def _describe(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        dtype = str(leaf.dtype).removeprefix("torch.")
        return f"a tensor of {dtype} and shape {tuple(leaf.shape)}"
    if isinstance(leaf, Number):
        return "a complex number" if isinstance(leaf, complex) else "a number"
    return repr(leaf)


def _explain_refusal(leaves: Sequence[tuple[str, Any]], weight: float) -> str:
    """Return why there is no mean, or ``""``."""
    for place, leaf in leaves:
        others = (Number, str, type(None))
        if not (is_dense(leaf) if isinstance(leaf, Tensor) else isinstance(leaf, others)):
            return (
                f"there is no mean of the {type(leaf).__name__} at {place}; give numbers, dense "
                "tensors (for a DTensor, its full_tensor()), or containers of them"
            )
    if not 0 <= weight < float("inf"):
        return f"a weight is a number from zero up; got {weight}"
    return ""


def _to_double(leaf: Any) -> Tensor:
    """Return a leaf in float64; a complex number as its two parts."""
    if not isinstance(leaf, Tensor):
        parts = [leaf.real, leaf.imag] if isinstance(leaf, complex) else float(leaf)
        return torch.tensor(parts, dtype=torch.float64, device="cpu")
    if leaf.is_complex():
        return torch.view_as_real(leaf.detach().resolve_conj().to(torch.complex128))
    return leaf.detach().to(torch.float64)


def _convert_like(leaf: Any, mean: Tensor) -> Any:
    if not isinstance(leaf, Tensor):
        return complex(*mean.tolist()) if isinstance(leaf, complex) else mean.item()
    if leaf.is_complex():
        return torch.view_as_complex(mean.clone()).to(leaf.device, leaf.dtype)
    dtype = leaf.dtype if leaf.is_floating_point() else torch.get_default_dtype()
    return mean.to(leaf.device, dtype)
