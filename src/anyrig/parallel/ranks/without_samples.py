"""A batch without samples: a rank has one when its data has run out and other ranks' data has not.

::

    x: 0 samples ─▶ 2 stand-ins ─▶ module ─▶ outputs ─▶ 0 samples

The module computes, so that this rank reaches every collective, and nothing it computes counts.
There are stand-ins because many modules reject an empty batch: ``reshape(samples, -1)`` is
ambiguous then. There are two because the variance of a single sample is undefined.

Where stand-ins cannot be made, as for an object of a custom class, or cannot be taken out of
the output again, the module computes the empty batch itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...errors import AnyrigError, SpreadError
from ...transfer.leaves import GO_IN, replace_parts
from ...transfer.tree import ATOM_TYPES, Path, list_leaves, map_leaves
from ..marks import tensors_with_gradients
from ..parts.cut import is_dense
from ..parts.objects import has_tensors, is_object
from ..parts.samples import count_listed, is_list

_STAND_INS = 2

# The positional and the keyword arguments of one call.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def first_samples(arguments: Arguments, count: int, dim: int) -> Any:
    """Return a copy of the arguments with the first `count` samples along `dim`.

    Return None if an argument cannot be cut, as a sparse or a nested tensor.
    """
    if not _can_be_cut(arguments):
        return None
    listed = count_listed(*arguments)

    def shorten(part: Any, path: Path) -> Any:
        if len(path) == 2 and is_list(part) and len(part) == listed:  # an argument
            return part[:count]
        return GO_IN

    if listed is None:
        shortened = _narrow(arguments, count, dim)
    else:
        shortened = replace_parts(arguments, shorten)
    return map_leaves(
        shortened, lambda leaf, _: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf
    )


def compute_without_samples(
    module: nn.Module,
    compute: Callable[..., Any],
    given: Arguments,
    like: Arguments | None,
    dim: int,
    may_repeat: bool = True,
) -> Any:
    """Return the outputs of `module` for arguments without samples, with a graph through it.

    `compute` calls the module, and `may_repeat` says that it may do so twice, since it has no
    collectives. `like` has the arguments of an earlier call with one sample, which give the
    stand-ins their values. Raise SpreadError if it is None and the arguments list samples; or if
    the module has to compute the empty batch itself, and cannot.
    """
    if any(isinstance(layer, nn.SyncBatchNorm) for layer in module.modules()):
        return compute(
            *given[0], **given[1]
        )  # stand-ins would count in the statistics of all ranks
    require_sample(given, like)
    found = _without_stand_ins(given)
    if found:
        return _compute_empty(module, compute, given, f"there are no stand-ins for {found}")
    inputs, kwargs = _stand_in(given, like, dim)
    before = _kept_tensors(module)
    with _without_statistics(module):
        output = compute(*inputs, **kwargs)
    if count_listed((output,), {}) is not None:
        return output[:0]
    hidden = _holder_of_hidden_tensors(output)
    if hidden and not may_repeat:
        raise SpreadError(
            f"this rank has no samples, and the module returned a {hidden}, whose samples cannot "
            "be taken out. Return the tensors of the loss in a dict, a tuple or a dataclass; or "
            "let every global batch have a sample for every rank"
        )
    if hidden:
        reason = f"stand-ins cannot be taken out of the {hidden} that it returns"
        return _compute_empty(module, compute, given, reason)
    for place, kept in _kept_tensors(module).items():
        if kept is not before.get(place):
            layer, name = place
            setattr(layer, name, _narrow(kept, 0, dim))
    return _narrow(output, 0, dim)


def require_sample(given: Arguments, like: Arguments | None) -> None:
    """Raise SpreadError unless arguments without samples show what a sample is.

    `like` has the arguments of an earlier call with one sample.
    """
    if like is None and (count_listed(*given) is not None or not _can_be_cut(given)):
        raise SpreadError(
            "this rank has no samples, and its arguments do not show what a sample is: they are "
            "empty lists in the first step, or sparse or nested tensors. So the module cannot "
            "compute in step with the other ranks. Let every global batch have a sample for every "
            "rank"
        )


def _without_stand_ins(given: Arguments) -> str:
    """Return what in the arguments has samples but no stand-ins; empty if all of it has them."""
    for leaf, _ in list_leaves(given):
        is_plain = isinstance(leaf, Tensor) or type(leaf) in ATOM_TYPES
        if not is_plain and (is_object(leaf) or has_tensors(leaf)):
            return f"a {type(leaf).__name__}"
    empty: list[Any] = []

    def note(part: Any, path: Path) -> Any:
        if len(path) > 1 and is_list(part) and not part:  # of an argument, beside a tensor
            empty.append(part)
        return GO_IN

    if count_listed(*given) is None:
        replace_parts(given, note)
    return "an empty list" if empty else ""


def _compute_empty(
    module: nn.Module, compute: Callable[..., Any], given: Arguments, reason: str
) -> Any:
    try:
        with _without_statistics(module):
            return compute(*given[0], **given[1])
    except AnyrigError:
        raise
    except Exception as error:
        raise SpreadError(
            f"this rank has no samples, {reason}, and {type(module).__name__} does not compute an "
            f"empty batch ({type(error).__name__}: {error}). Let it, or let every global batch "
            "have a sample for every rank"
        ) from error


def _holder_of_hidden_tensors(output: Any) -> str:
    """Return the class of an object that hides tensors of an output from `_narrow`.

    The string is empty if `_narrow` reaches every tensor.
    """
    for leaf, _ in list_leaves(output):
        if not isinstance(leaf, Tensor) and tensors_with_gradients(leaf):
            return type(leaf).__name__
    return ""


def _kept_tensors(module: nn.Module) -> dict[tuple[nn.Module, str], Tensor]:
    """Return the tensors with a graph that a forward has left in attributes."""
    return {
        (layer, name): value
        for layer in module.modules()
        for name, value in vars(layer).items()
        if isinstance(value, Tensor) and value.requires_grad and not value.is_leaf
    }


def _can_be_cut(arguments: Arguments) -> bool:
    leaves = (leaf for leaf, _ in list_leaves(arguments) if isinstance(leaf, Tensor))
    return all(map(is_dense, leaves))


@contextmanager
def _without_statistics(module: nn.Module) -> Iterator[None]:
    """Keep the running statistics of batch normalization as they are."""
    learning = [
        layer for layer in module.modules() if isinstance(layer, _BatchNorm) and layer.training
    ]
    for layer in learning:
        layer.training = False
    try:
        yield
    finally:
        for layer in learning:
            layer.training = True


def _has(leaf: Any, dim: int) -> bool:
    return isinstance(leaf, Tensor) and -leaf.dim() <= dim < leaf.dim()


def _narrow(tree: Any, count: int, dim: int) -> Any:
    def narrow(leaf: Any, _: Path) -> Any:
        return leaf.narrow(dim, 0, min(count, leaf.size(dim))) if _has(leaf, dim) else leaf

    return map_leaves(tree, narrow)


def _stand_in(given: Arguments, like: Arguments | None, dim: int) -> Any:
    lists_samples = count_listed(*given) is not None
    known: dict[Path, Any] = {}

    def note(part: Any, path: Path) -> Any:
        known[path] = part
        return GO_IN

    def fill(part: Any, path: Path) -> Any:
        if lists_samples and len(path) == 2 and is_list(part):  # an argument
            return part or known.get(path, part) * _STAND_INS
        if lists_samples or not _has(part, dim) or part.size(dim):
            return GO_IN
        shape = list(part.shape)
        shape[dim] = 1
        sample = known.get(path)
        if not isinstance(sample, Tensor) or [*sample.shape] != shape or sample.dtype != part.dtype:
            # 1 is also a valid index and a valid length. False in a mask hides nothing.
            sample = part.new_full(shape, part.dtype is not torch.bool)
        # With `part`, so that the outputs depend on an input that requires a gradient.
        return torch.cat([part, *[sample.to(part.device)] * _STAND_INS], dim)

    replace_parts(like, note)
    return replace_parts(given, fill)
