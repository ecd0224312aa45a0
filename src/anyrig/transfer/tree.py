"""Map the leaves of a nested structure and keep the rest.

::

    {"image": [a, b],        map_leaves(f)       {"image": [f(a), f(b)],
     "again": a,          ─────────────────▶      "again": f(a),        the same object, f(a)
     "name": "seven"}                             "name": "seven"}

Containers are mappings, lists, tuples, named tuples, sets, deques, dataclasses, objects of attrs
and pydantic, `UserDict`, `UserList` and `PackedSequence`, their subclasses, and the attributes of
these. Everything else is a leaf, and so is any object whose class has a method `to`, which moves
the object itself. A container in which nothing changed is returned itself, as `torch.Tensor.to`
does with a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from ..errors import MoveError
from .containers import Part, children_of, is_container, with_children

Path = tuple[Part, ...]
LeafMap = Callable[[Any, Path], Any]
IsWhole = tuple[type, ...] | Callable[[Any], bool]

ATOM_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes})
_TENSOR_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})


def map_leaves(tree: Any, map_leaf: LeafMap, whole: IsWhole = (), movable: bool = False) -> Any:
    """Return `tree` with each leaf replaced by ``map_leaf(leaf, path)``.

    An object that appears twice, leaf or container, is mapped once and is one object afterwards.
    Numbers, strings and None are kept without a call of `map_leaf`.

    Args:
        tree: any value. It is not changed.
        map_leaf: called once for each leaf, in order, with the leaf and its path.
        whole: containers of these types, or for which this function returns True, are leaves here.
        movable: whether containers with a method `to` are entered.

    Raises:
        MoveError: a container contains itself, has a tensor as a key, or cannot be rebuilt.
    """
    return _Walk(map_leaf, whole, movable).map(tree, ())


def list_leaves(tree: Any, whole: IsWhole = (), movable: bool = False) -> list[tuple[Any, Path]]:
    """Return the leaves that `map_leaves` maps, in order, each once, with their paths."""
    found: list[tuple[Any, Path]] = []

    def note(leaf: Any, path: Path) -> Any:
        found.append((leaf, path))
        return leaf

    map_leaves(tree, note, whole, movable)
    return found


def walk_leaves(
    value: Any, whole: IsWhole = (), path: Path = (), movable: bool = False
) -> Iterator[tuple[Path, Any]]:
    """Yield every leaf with its path, including repeated leaves, numbers, strings and None."""
    if not is_container(value, movable) or _is_whole(value, whole):
        yield path, value
        return
    for part, child in children_of(value):
        yield from walk_leaves(child, whole, (*path, part), movable)


def _is_whole(value: Any, whole: IsWhole) -> bool:
    return isinstance(value, whole) if isinstance(whole, tuple) else whole(value)


def format_path(path: Path) -> str:
    """Return a path as Python code: ``"['image'][0].mask"``; the root is ``"the value"``."""
    return "".join(form.format(key) for form, key in path) or "the value"


class _Walk:
    """One pass over one tree: the objects already mapped, and the containers being entered."""

    def __init__(self, map_leaf: LeafMap, whole: IsWhole, movable: bool) -> None:
        self._map_leaf = map_leaf
        self._whole = whole
        self._movable = movable
        # The originals are kept with the results, so that no id is reused by another object.
        self._done: dict[int, tuple[Any, Any]] = {}
        self._entered: set[int] = set()

    def map(self, value: Any, path: Path) -> Any:
        if type(value) in ATOM_TYPES:
            return value
        known = self._done.get(id(value))
        if known is not None:
            return known[1]
        if id(value) in self._entered:
            raise MoveError(
                f"{type(value).__name__} at {format_path(path)} contains itself; "
                "break the cycle, or move its parts one by one"
            )
        if type(value) in _TENSOR_TYPES:  # most leaves: no need to look further
            result = self._map_leaf(value, path)
            self._done[id(value)] = (value, result)
            return result
        self._entered.add(id(value))
        if _is_whole(value, self._whole):
            result = self._map_leaf(value, path)
        elif isinstance(value, PackedSequence):
            result = self._map_packed(value, path)
        elif is_container(value, self._movable):
            result = self._map_container(value, path)
        else:
            result = self._map_leaf(value, path)
        self._entered.discard(id(value))
        self._done[id(value)] = (value, result)
        return result

    def _map_container(self, container: Any, path: Path) -> Any:
        if isinstance(container, Mapping) and any(isinstance(k, torch.Tensor) for k in container):
            raise MoveError(
                f"{type(container).__name__} at {format_path(path)} has a tensor as a key, and "
                "keys are not moved; use a name or an index as the key"
            )
        before = children_of(container)
        children = [self.map(child, (*path, part)) for part, child in before]
        try:
            return with_children(container, before, children)
        except Exception as error:
            failure = f"rebuilt with its tensors replaced ({type(error).__name__}: {error})"
            kind = type(container).__name__
            refusal = MoveError(
                f"{kind} at {format_path(path)} cannot be {failure}; "
                "give its class a method `to(device)`"
            )
            refusal.failure = f"{kind} cannot be {failure}"
            raise refusal from error

    def _map_packed(self, packed: PackedSequence, path: Path) -> PackedSequence:
        # PackedSequence keeps batch_sizes on the CPU, where torch.nn.RNN reads it.
        data, sorted_indices, unsorted_indices = (
            self.map(getattr(packed, name), (*path, (".{}", name)))
            for name in ("data", "sorted_indices", "unsorted_indices")
        )
        if (
            data is packed.data
            and sorted_indices is packed.sorted_indices
            and unsorted_indices is packed.unsorted_indices
        ):
            return packed
        return type(packed)(data, packed.batch_sizes, sorted_indices, unsorted_indices)
