"""Telling lists of samples from lists of tensors that have the samples along a dimension.

::

    [{"img": [3, 8, 8]}] * 5                   samples in the entries: 5
    [{"x": [9, 4]}, {"x": [9, 4]}], y [9]      samples along dimension 0: 9, as y has
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.nn.utils.rnn import PackedSequence

from ...errors import BatchError
from ...transfer.containers import children_of, is_container
from ...transfer.tree import Path
from .listed import Listed, is_list, lists_dicts
from .samples import count_of, has_samples

_REMEDY = (
    "Collate the samples into tensors with a dimension of samples, which one dict may hold; or "
    "start a rank for each device, where the module gets its own list as it is"
)


def mark_listed(
    tree: Any, dim: int, name: Callable[[Path], str], is_call: bool, expected: int | None = None
) -> Any:
    """Return `tree` with a `Listed` in place of each list of samples.

    A list of dicts among the arguments has a sample in each entry, and so has any list of the same
    length. But if all its tensors have the size along `dim` of the tensors outside, these are the
    samples, and it stays.

    Args:
        tree: a value; or if `is_call`, ``(args, kwargs)``, maybe with a target as the third.
        dim: along which tensors are divided.
        name: formats a path for messages.
        is_call: whether the arguments can be lists of samples, or `tree` itself.
        expected: the number of samples, if it is known.

    Raises:
        BatchError: both readings are possible, or none.
    """
    slots = list(_slots(tree, is_call))
    if not any(is_container(value) for _, value in slots):
        return tree
    found = _Found(dim)
    listed = [(path, value) for path, value in slots if lists_dicts(value)]
    lengths = {len(value) for _, value in listed}
    for path, value in slots:
        inside = is_list(value) and len(value) in lengths
        found.look_at(value, path, inside, set())
    if not listed and not found.deeper:
        return tree
    outside = found.outside if expected is None else found.outside | {expected}
    dicts = listed or found.deeper
    path, first = dicts[0]
    about = f"{name(path)} is a list of {len(first)} dicts"
    if not outside:
        return _by_entries(about, tree, found, lengths, is_call)
    along = len(outside) == 1 and found.inside == outside
    by_entries = any({len(value)} == outside for _, value in dicts)
    if along and by_entries and len(first) > 1:
        raise BatchError(
            f"{about}, and all tensors in it have size {len(first)} along dimension {dim}, too, so "
            f"either could be its samples. {_REMEDY}"
        )
    if along or len(outside) > 1 or -1 in outside:  # sizes that differ are refused later
        return tree
    if not listed and not found.inside and not (by_entries and len(first) > 1):
        return tree  # settings, the same for all samples
    if listed and by_entries and len(lengths) == 1 and not (found.deeper and found.inside_deeper):
        return _mark(tree, lengths, is_call)
    sizes = ", ".join(map(str, sorted(found.inside))) or "no"
    raise BatchError(
        f"{about}, whose tensors have {sizes} samples along dimension {dim}, but the batch has "
        f"{next(iter(outside))} samples. A list of dicts among the arguments has a sample in each "
        f"entry, or the samples of the batch in each tensor. {_REMEDY}. Settings belong in the "
        "module"
    )


@dataclass
class _Found:
    """The sizes along `dim` of the tensors inside and outside lists, and the lists further in."""

    dim: int
    inside: set[int] = field(default_factory=set)
    outside: set[int] = field(default_factory=set)
    deeper: list[tuple[Path, Any]] = field(default_factory=list)
    inside_deeper: bool = False

    def look_at(
        self, value: Any, path: Path, inside: bool, entered: set[int], deep: bool = False
    ) -> None:
        if isinstance(value, PackedSequence) or not is_container(value):
            size = count_of(value, self.dim) if has_samples(value) else None
            if has_samples(value):
                (self.inside if inside else self.outside).add(-1 if size is None else size)
                self.inside_deeper |= inside and deep
            return
        if id(value) in entered:  # it contains itself, which the division refuses
            return
        if not inside and lists_dicts(value):
            self.deeper.append((path, value))
            inside = deep = True
        entered = entered | {id(value)}
        for part, child in children_of(value):
            self.look_at(child, (*path, part), inside, entered, deep)


def _by_entries(about: str, tree: Any, found: _Found, lengths: set[int], is_call: bool) -> Any:
    if found.deeper and found.inside:
        raise BatchError(
            f"{about} inside of another argument, and nothing outside shows whether its samples "
            f"are its entries. Make it an argument of its own. Or: {_REMEDY}"
        )
    if len(lengths) > 1:
        raise BatchError(
            f"{about}, but another list of dicts has another length: "
            f"{' and '.join(map(str, sorted(lengths)))}. Each must have an entry for each sample. "
            f"{_REMEDY}"
        )
    return _mark(tree, lengths, is_call) if lengths else tree


def _slots(tree: Any, is_call: bool) -> Iterator[tuple[Path, Any]]:
    if not is_call:
        yield (), tree
        return
    args, kwargs, *target = tree
    yield from ((((("[{}]", 0)), ("[{}]", i)), value) for i, value in enumerate(args))
    yield from ((((("[{}]", 1)), ("[{!r}]", key)), value) for key, value in kwargs.items())
    yield from (((("[{}]", 2),), value) for value in target)


def _mark(tree: Any, lengths: set[int], is_call: bool) -> Any:
    known: dict[int, Listed] = {}  # an object that is passed twice stays one

    def mark(value: Any) -> Any:
        if is_list(value) and len(value) in lengths:
            return known.setdefault(id(value), Listed(value))
        return value

    if not is_call:
        return mark(tree)
    args, kwargs, *target = tree
    marked = tuple(map(mark, args)), {key: mark(value) for key, value in kwargs.items()}
    return (*marked, *map(mark, target))
