"""The arguments of a step, divided along the first dimension of their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

# Private, but PyTorch's own extensions register their containers here; test_torch_names.py notices
# a change.
from torch.utils import _pytree

_WITHOUT_SAMPLES = (
    *(type(None), bool, int, float, complex, str, bytes),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator, nn.Module),
)


class Batch:
    """The arguments of one call of a step.

    ::

        step(x, {"mask": m}, 0.5)     part(0, 2)  ▶  x[0:2], {"mask": m[0:2]}, 0.5
                                      part(2, 2)  ▶  x[2:4], {"mask": m[2:4]}, 0.5

    Parts are views. Every part gets the zero-dimensional tensors, numbers and strings unchanged.

    Attributes:
        samples: the size of the tensors along dimension 0; 0 if no tensor has dimensions.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._arguments = (args, dict(kwargs))
        self._leaves, self._structure = _pytree.tree_flatten(self._arguments)
        self.samples = next((len(leaf) for leaf in self._leaves if _has_samples(leaf)), 0)

    def refusal(self) -> str | None:
        """Return why the batch cannot be divided, and what to do; None if it can be."""
        if not any(map(_has_samples, self._leaves)):
            return "no argument of the step is a tensor; pass the batch as arguments"
        for index, leaf in enumerate(self._leaves):
            problem = self._problem(leaf)
            if problem is not None:
                found, _ = _pytree.tree_flatten_with_path(self._arguments)
                return f"{_name(found[index][0])} {problem}"
        for each in _lists_in(self._arguments):
            if len(each) == self.samples > 1 and not any(map(_is_container, each)):
                return (
                    f"a list of {len(each)} {type(each[0]).__name__}s may have one entry for each "
                    "sample, and only tensors are divided; pass a tensor, or a tuple if every part "
                    "needs all entries"
                )
        return None

    def part(self, start: int, count: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with `count` samples, beginning with sample `start`."""
        if start == 0 and count == self.samples:
            return self._arguments
        leaves = [
            leaf.narrow(0, start, count) if _has_samples(leaf) else leaf for leaf in self._leaves
        ]
        arguments: tuple[tuple[Any, ...], dict[str, Any]] = _pytree.tree_unflatten(
            leaves, self._structure
        )
        return arguments

    def _problem(self, leaf: Any) -> str | None:
        if not isinstance(leaf, Tensor):
            if isinstance(leaf, _WITHOUT_SAMPLES) or callable(leaf):
                return None
            return (
                f"is a {type(leaf).__name__}, which may hold samples; pass tensors, in tuples, "
                "lists and dicts"
            )
        if leaf.is_nested or leaf.layout is not torch.strided:
            return "is a nested or sparse tensor, which cannot be divided; pass a dense one"
        if leaf.requires_grad:
            return (
                "requires a gradient, so the step would run backward through its graph twice; "
                "compute it within the step, or detach it"
            )
        if leaf.dim() and len(leaf) != self.samples:
            return (
                f"has {len(leaf)} entries along dimension 0, but another tensor has "
                f"{self.samples}; give each tensor one entry for each sample"
            )
        return None


def divide_evenly(samples: int, parts: int) -> list[tuple[int, int]]:
    """Return the start and the size of each part. Sizes differ by at most one."""
    size, larger = divmod(samples, parts)
    return [(i * size + min(i, larger), size + (i < larger)) for i in range(parts)]


def _has_samples(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0


def _is_container(value: Any) -> bool:
    return isinstance(value, (Tensor, list, tuple, dict))


def _lists_in(value: Any) -> list[list[Any]]:
    if isinstance(value, Mapping):
        return [found for each in value.values() for found in _lists_in(each)]
    if isinstance(value, (list, tuple)):
        own = [value] if isinstance(value, list) else []
        return own + [found for each in value for found in _lists_in(each)]
    return []


def _name(path: tuple[Any, ...]) -> str:
    _, argument, *within = path
    number = getattr(argument, "idx", None)
    name = f"argument {number}" if number is not None else f"argument {argument.key!r}"
    return name + (f", {_pytree.keystr(tuple(within))}," if within else "")
