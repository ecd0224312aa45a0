"""Random nested structures: what every one of them must keep."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anyrig.transfer import copy_to_host, move
from anyrig.transfer.tree import map_leaves


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Box:
    content: Any
    label: str


# A few tensors that occur again and again, so that structures share them.
TENSORS = tuple(torch.arange(size, dtype=torch.float32) for size in range(1, 5))
KEYS = st.one_of(st.text(max_size=3), st.integers(-3, 3), st.tuples(st.integers(0, 1)))
LEAVES = st.one_of(
    st.sampled_from(TENSORS), st.none(), st.integers(), st.text(max_size=3), st.binary(max_size=3)
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.lists(inner, max_size=4).map(deque),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4).map(OrderedDict),
        st.builds(Pair, inner, inner),
        st.builds(Box, inner, st.text(max_size=2)),
        inner.map(lambda shared: [shared, {"again": shared}]),
    ),
    max_leaves=20,
)


def flatten(tree: Any) -> list[Any]:
    """Leaves and container types in order: an independent reading of the structure."""
    if isinstance(tree, dict):
        parts = [part for key, value in tree.items() for part in (key, *flatten(value))]
    elif isinstance(tree, (list, tuple, deque)):
        parts = [part for value in tree for part in flatten(value)]
    elif isinstance(tree, Box):
        parts = [*flatten(tree.content), tree.label]
    else:
        return [tree]
    return [type(tree), *parts]


def has_tensor(tree: Any) -> bool:
    return any(isinstance(part, torch.Tensor) for part in flatten(tree))


@given(TREES)
@settings(deadline=None)
def test_keeping_every_leaf_keeps_the_tree(tree: Any) -> None:
    assert map_leaves(tree, lambda leaf, path: leaf) is tree


@given(TREES)
@settings(deadline=None)
def test_moving_keeps_structure_and_the_rest(tree: Any) -> None:
    before = flatten(tree)
    moved = move([tree, torch.ones(1)], "meta")[0]
    after = flatten(moved)
    assert len(after) == len(before)
    for old, new in zip(before, after, strict=True):
        if isinstance(old, torch.Tensor):
            assert new.is_meta
            assert new.shape == old.shape
        else:
            assert new is old or new == old
    assert all(old is again for old, again in zip(before, flatten(tree), strict=True))


@given(TREES)
@settings(deadline=None)
def test_moving_keeps_sharing(tree: Any) -> None:
    before, after = flatten(tree), flatten(move([tree, torch.ones(1)], "meta")[0])
    image: dict[int, int] = {}
    for old, new in zip(before, after, strict=True):
        if isinstance(old, torch.Tensor):
            assert image.setdefault(id(old), id(new)) == id(new)
    assert len(set(image.values())) == len(image)


@given(TREES.filter(has_tensor))
@settings(deadline=None)
def test_moving_to_where_it_is_returns_the_tree(tree: Any) -> None:
    assert move(tree, "cpu") is tree


@given(TREES)
@settings(deadline=None)
def test_a_host_copy_equals_its_source_and_shares_no_memory_with_it(tree: Any) -> None:
    before, after = flatten(tree), flatten(copy_to_host(tree).value)
    for old, new in zip(before, after, strict=True):
        if isinstance(old, torch.Tensor):
            assert torch.equal(old, new)
            assert old.data_ptr() != new.data_ptr()
        else:
            assert new is old or new == old
