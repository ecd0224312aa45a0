"""Telling lists of samples from lists of tensors that have the samples along a dimension.

::

    [{"img": [3, 8, 8]}] * 5                   samples in the entries: 5
    [{"x": [9, 4]}, {"x": [9, 4]}], y [9]      samples along dimension 0: 9, as y has
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...errors import BatchError
from ...transfer.containers import children_of, is_container
from ...transfer.tree import Path, list_leaves, walk_leaves
from .samples import WHOLE, Listed, count_of, has_samples, is_list

_REMEDY = (
    "Collate the samples into tensors with a dimension of samples, for example in one dict; or "
    "start a rank for each device, where the module gets its list unchanged"
)


def mark_listed(
    tree: Any, dim: int, name: Callable[[Path], str], is_call: bool, expected: int | None = None
) -> Any:
    """Return `tree` with a `Listed` in place of each list of samples.

    A list of dicts among the arguments has a sample in each entry, and so has any list of the same
    length. But if the list's tensors all have the same size along `dim` as the tensors outside,
    that dimension has the samples, and the list stays.

    If `is_call`, `tree` is ``(args, kwargs)`` or ``(args, kwargs, target)``, and each argument may
    be a list of samples; else only `tree` itself may be one. `expected` is the number of samples,
    if known. Raise BatchError if both readings are possible, or neither.
    """
    slots = list(_slots(tree, is_call))
    if not any(is_container(value) for _, value in slots):
        return tree
    listed = [(path, value) for path, value in slots if lists_dicts(value)]
    lengths = {len(value) for _, value in listed}
    # The sizes of the tensors in lists of samples, in lists of dicts further in, and elsewhere.
    in_listed: set[int] = set()
    in_deeper: set[int] = set()
    outside = set() if expected is None else {expected}
    deeper: list[tuple[Path, Any]] = []
    for path, value in slots:
        list_leaves(value)  # refuses a value that contains itself
        is_listed = is_list(value) and len(value) in lengths
        lists = [] if is_listed else [*_lists_in(value, ())]
        deeper += [((*path, *within), found) for within, found in lists]
        for place, leaf in walk_leaves(value, WHOLE):
            if has_samples(leaf):
                is_deeper = any(place[: len(within)] == within for within, _ in lists)
                sizes = in_listed if is_listed else in_deeper if is_deeper else outside
                size = count_of(leaf, dim)
                sizes.add(-1 if size is None else size)
    if not listed and not deeper:
        return tree
    inside = in_listed | in_deeper
    dicts = listed or deeper
    path, first = dicts[0]
    about = f"{name(path)} is a list of {len(first)} dicts"
    if not outside:
        if deeper and inside:
            raise BatchError(
                f"{about} inside another argument, and nothing outside shows whether each entry is "
                f"a sample. Make it an argument of its own. Or: {_REMEDY}"
            )
        if len(lengths) > 1:
            raise BatchError(
                f"{about}, but another list of dicts has a different length: "
                f"{' and '.join(map(str, sorted(lengths)))}. Each must have an entry for each "
                f"sample. {_REMEDY}"
            )
        return _mark(tree, lengths, is_call) if lengths else tree
    along = len(outside) == 1 and inside == outside
    by_entries = any({len(value)} == outside for _, value in dicts)
    if along and by_entries and len(first) > 1:
        raise BatchError(
            f"{about}, and all tensors in it have size {len(first)} along dimension {dim}, too, so "
            f"either could be its samples. {_REMEDY}"
        )
    if along or len(outside) > 1 or -1 in outside:  # sizes that differ are refused later
        return tree
    if not listed and not inside and not (by_entries and len(first) > 1):
        return tree  # settings, the same for all samples
    if listed and by_entries and len(lengths) == 1 and not in_deeper:
        return _mark(tree, lengths, is_call)
    found = ", ".join(map(str, sorted(inside))) or "no"
    raise BatchError(
        f"{about}, whose tensors have {found} samples along dimension {dim}, but the batch has "
        f"{next(iter(outside))} samples. A list of dicts among the arguments has a sample in each "
        f"entry, or the samples of the batch in each tensor. {_REMEDY}. Settings belong in the "
        "module"
    )


def lists_dicts(value: Any) -> bool:
    """Return whether `value` is a list of dicts that have a key in common.

    Dicts without a common key are different things, not several samples.
    """
    if not is_list(value) or not value or not all(isinstance(each, Mapping) for each in value):
        return False
    return bool(set.intersection(*(set(each) for each in value)))


def _lists_in(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the outermost lists of dicts in a value, with their paths."""
    if lists_dicts(value):
        yield path, value
    elif is_container(value):
        for part, child in children_of(value):
            yield from _lists_in(child, (*path, part))


def _slots(tree: Any, is_call: bool) -> Iterator[tuple[Path, Any]]:
    if not is_call:
        yield (), tree
        return
    args, kwargs, *target = tree
    yield from ((((("[{}]", 0)), ("[{}]", i)), value) for i, value in enumerate(args))
    yield from ((((("[{}]", 1)), ("[{!r}]", key)), value) for key, value in kwargs.items())
    yield from (((("[{}]", 2),), value) for value in target)


def _mark(tree: Any, lengths: set[int], is_call: bool) -> Any:
    known: dict[int, Listed] = {}  # an object that is passed twice stays one object

    def mark(value: Any) -> Any:
        if is_list(value) and len(value) in lengths:
            return known.setdefault(id(value), Listed(value))
        return value

    if not is_call:
        return mark(tree)
    args, kwargs, *target = tree
    marked = tuple(map(mark, args)), {key: mark(value) for key, value in kwargs.items()}
    return (*marked, *map(mark, target))
