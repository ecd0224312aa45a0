"""The leaves of a nested value with their places, in an order on which ranks agree.

Dicts, lists, tuples, named tuples and dataclasses are gone into, as `anyrig.transfer.tree` does;
numbers, texts and None are leaves here too. `map_leaves` visits an object that appears twice only
once; here each place has its leaf, since an object that one rank has twice may be two on another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ...transfer.containers import attributes_of, is_container, items_of, rebuild
from ...transfer.tree import Path, format_path

# Of a set, equal values may come in another order on each rank.
_LEAVES = (set, frozenset, torch.Size, PackedSequence)


def leaves_of(value: Any) -> list[tuple[str, Any]]:
    """Return the leaves of `value` with their places as texts, sorted by these.

    So two dictionaries with the same keys in another order have the same leaves.
    """
    return sorted(
        ((format_path(path), leaf) for path, leaf in _walk(value, ())), key=lambda pair: pair[0]
    )


def replace_leaves(value: Any, replacement: Callable[[str, Any], Any]) -> Any:
    """Return `value` with each leaf replaced by ``replacement(place, leaf)``."""
    return _replace(value, (), replacement)


def is_inner(value: Any) -> bool:
    """Say whether a value is gone into."""
    return is_container(value) and not isinstance(value, _LEAVES)


def is_dense(tensor: Tensor) -> bool:
    """Say whether a tensor is its elements in memory: not sparse, nested, quantized, or a DTensor,
    which is but a part on each rank.
    """
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    )


def _walk(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if not is_inner(value):
        yield path, value
        return
    for part, item in items_of(value):
        yield from _walk(item, (*path, part))
    for name, attribute in attributes_of(value).items():
        yield from _walk(attribute, (*path, (".{}", name)))


def _replace(value: Any, path: Path, replacement: Callable[[str, Any], Any]) -> Any:
    if not is_inner(value):
        return replacement(format_path(path), value)
    items = [_replace(item, (*path, part), replacement) for part, item in items_of(value)]
    attributes = {
        name: _replace(attribute, (*path, (".{}", name)), replacement)
        for name, attribute in attributes_of(value).items()
    }
    return rebuild(value, items, attributes)
