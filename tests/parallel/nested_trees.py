"""Random nested structures, and the custom containers in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from hypothesis import strategies as st


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Box:
    content: Any
    label: str


class Opaque:
    """Neither a container nor a tensor: each device gets the same object."""


def trees_of(leaves: st.SearchStrategy[Any], max_leaves: int) -> st.SearchStrategy[Any]:
    """Return structures of up to `leaves` leaves, in every kind of container."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(st.text(max_size=2), inner, max_size=3),
            st.builds(Pair, inner, inner),
            st.builds(Box, inner, st.text(max_size=2)),
        ),
        max_leaves=max_leaves,
    )


def fill(tree: Any, put: Callable[[Any], Any], leaf: type = str) -> Any:
    """Return the tree with ``put(x)`` for each `x` of the type `leaf`, built in its own way."""

    def build(value: Any) -> Any:
        if isinstance(value, leaf):
            return put(value)
        if isinstance(value, dict):
            return {key: build(part) for key, part in value.items()}
        if isinstance(value, Pair):
            return Pair(*map(build, value))
        if isinstance(value, Box):
            return Box(build(value.content), value.label)
        if isinstance(value, (list, tuple)):
            return type(value)(map(build, value))
        return value

    return build(tree)
