"""Telling lists of samples from lists of tensors that have the samples along a dimension.

::

    [{"img": [3, 8, 8]}] * 5                   samples in the entries: 5
    x [9, 4], ["a cat", "a dog", …] of 9       samples in the entries: 9, as x has
    [{"x": [9, 4]}, {"x": [9, 4]}], y [9]      samples along dimension 0: 9, as y has
    x [9, 4], (224, 224)                       a setting, the same for all samples
    [[3, 8, 8], [3, 9, 8]] alone               either: refused

Everything outside such lists decides: its number of samples is the length of a list of samples, or
the size of the tensors in another list.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ...errors import BatchError
from ...transfer.containers import children_of, has_fields, is_container
from ...transfer.tree import Path, list_leaves, map_leaves
from .objects import has_tensors, is_object
from .with_samples import Listed, count_of, has_samples, is_list, is_whole

_REMEDY = (
    "Collate the samples into tensors with a dimension of samples, for example in one dict; or "
    "start a rank for each device, where the module gets its list unchanged"
)
_Name = Callable[[Path], str]


class UnclearError(BatchError):
    """A list may be read in two ways, and nothing outside decides.

    `samples` is the number of samples if it is the same either way.
    """

    def __init__(self, message: str, samples: int | None = None) -> None:
        super().__init__(message)
        self.samples = samples


@dataclass
class _List:
    """A list that may have a sample in each entry."""

    path: Path
    entries: Any
    is_argument: bool  # whether it is an argument of its own
    is_records: bool  # whether its entries are dicts with a key in common, or objects of one class
    sizes: set[int] = field(default_factory=set)  # along the dimension, of the tensors in it

    def __len__(self) -> int:
        return len(self.entries)


def mark_listed(
    tree: Any, dim: int, name: _Name, is_call: bool, expected: int | None = None
) -> Any:
    """Return `tree` with a `Listed` in place of each list of samples.

    A list as long as the batch has a sample in each entry, and a list of dicts or objects that is
    the only one to show samples has, too. But if a list's tensors all have the same size along
    `dim` as the tensors outside, that dimension has the samples, and the list stays.

    If `is_call`, `tree` is ``(args, kwargs)`` or ``(args, kwargs, target)``. `expected` is the
    number of samples, if known. Raise BatchError if both readings are possible, or neither;
    UnclearError if both are, but one device can compute the batch.
    """
    slots = list(_slots(tree, is_call))
    if not any(is_container(value, movable=True) or is_list(value) for _, value in slots):
        return tree
    lists, outside = _search(slots, dim, 2 if is_call else 0)
    if expected is not None:
        outside.add(expected)
    if not lists or len(outside) > 1 or -1 in outside:  # sizes that differ are refused later
        return tree
    if outside:
        chosen = _choose_like(lists, outside.pop(), dim, name)
    else:
        chosen = _choose_alone(lists, dim, name, is_call)
    marked = {id(each.entries): Listed(each.entries) for each in chosen}
    if not marked:
        return tree
    return map_leaves(
        tree,
        lambda leaf, _: marked.get(id(leaf), leaf),
        lambda value: id(value) in marked or is_whole(value),
        movable=True,
    )


def _search(
    slots: Iterable[tuple[Path, Any]], dim: int, depth: int
) -> tuple[list[_List], set[int]]:
    """Return the outermost lists that may have a sample in each entry, and the sizes outside."""
    lists: list[_List] = []
    outside: set[int] = set()
    for path, value in slots:
        for leaf, within in list_leaves(value, _is_undecided, movable=True):
            sizes = outside
            leaves = [leaf]
            if _may_list_samples(leaf):
                place = (*path, *within)
                lists.append(_List(place, leaf, len(place) <= depth, lists_records(leaf)))
                sizes = lists[-1].sizes
                leaves = [inner for inner, _ in list_leaves(leaf, is_whole, movable=True)]
            for each in filter(has_samples, leaves):
                size = count_of(each, dim)
                sizes.add(-1 if size is None else size)
    return lists, outside


def _is_undecided(value: Any) -> bool:
    return is_whole(value) or _may_list_samples(value)


def _choose_like(lists: list[_List], samples: int, dim: int, name: _Name) -> list[_List]:
    """Return the lists that have an entry for each of the samples that the tensors outside have."""
    chosen, waiting = [], deque(lists)
    while waiting:
        each = waiting.popleft()
        along, by_entries = each.sizes == {samples}, len(each) == samples
        about = f"{name(each.path)} is {_describe(each)}"
        # A tuple of tuples is a structure, as (inputs, targets).
        may_list = each.is_records or _lists_tensors(each.entries)
        if along and by_entries and samples > 1 and may_list:
            reason = (
                f"{about}, and all tensors in it have size {samples} along dimension {dim}, too, "
                f"so either could be its samples. {_REMEDY}"
            )
            raise BatchError(reason) if each.is_records else UnclearError(reason, samples)
        if along:
            continue
        if by_entries:
            if samples > 1 and _looks_like_setting(each.entries):
                raise UnclearError(
                    f"{about}, and the batch has {samples} samples, so it may be a setting or have "
                    "an entry for each sample. Pass settings as attributes of the module; pass "
                    "an entry for each sample in a tensor or a list",
                    samples,
                )
            chosen.append(each)
        elif each.sizes and each.is_records:
            sizes = ", ".join(map(str, sorted(each.sizes)))
            raise BatchError(
                f"{about}, whose tensors have {sizes} samples along dimension {dim}, but the batch "
                f"has {samples} samples. A list of dicts among the arguments has a sample in each "
                f"entry, or the samples of the batch in each tensor. {_REMEDY}. Settings belong in "
                "the module"
            )
        elif not each.sizes:
            # A setting, or a list of such lists, as collating lists of strings makes them.
            inner = (((*each.path, part), child) for part, child in children_of(each.entries))
            waiting.extend(_search(inner, dim, 0)[0])
    return chosen


def _choose_alone(lists: list[_List], dim: int, name: _Name, is_call: bool) -> list[_List]:
    """Return the lists that have a sample in each entry where nothing outside shows samples."""
    records = [each for each in lists if each.is_records]
    deeper = [each for each in records if not each.is_argument and each.sizes]
    if deeper:
        raise BatchError(
            f"{name(deeper[0].path)} is {_describe(deeper[0])} inside another argument, and "
            f"nothing outside shows whether each entry is a sample. Make it an argument of its "
            f"own. Or: {_REMEDY}"
        )
    deciding = [each for each in records if each.is_argument]
    lengths = {len(each) for each in deciding}
    # A list of tensors of another length has no sample in each entry, so its tensors count.
    others = [
        each.sizes
        for each in lists
        if each.sizes and not each.is_records and len(each) not in lengths
    ]
    if deciding and others:
        sizes = set().union(*others)
        return _choose_like(lists, sizes.pop(), dim, name) if len(sizes) == 1 else []
    if not deciding and is_call:
        tensors = [each for each in lists if each.sizes and _lists_tensors(each.entries)]
        sizes = set().union(*(each.sizes for each in tensors))
        if len(sizes) == 1 and (sizes != {1} or len(tensors[0]) > 1):
            first, (size,) = tensors[0], sizes
            raise UnclearError(
                f"{name(first.path)} is a list of {len(first)} tensors of size {size} along "
                f"dimension {dim}, and nothing outside the list shows which of the two is the "
                "number of samples. Say which with samples=, as in model(images, "
                f"samples={len(first)})",
                size if size == len(first) else None,
            )
        deciding = tensors if len(sizes) > 1 else []
    lengths = {len(each) for each in deciding}
    if len(lengths) > 1:
        raise BatchError(
            f"{name(deciding[0].path)} is {_describe(deciding[0])}, but another "
            f"{'list of dicts' if records else 'list'} has a different length: "
            f"{' and '.join(map(str, sorted(lengths)))}. Each must have an entry for each "
            f"sample. {_REMEDY}"
        )
    return [each for each in lists if len(each) in lengths]


def lists_records(value: Any) -> bool:
    """Return whether `value` is a list of dicts with a key in common, or objects of one class.

    Dicts without a common key are different inputs, not several samples.
    """
    if not is_list(value) or not len(value):
        return False
    if all(isinstance(each, Mapping) and not is_object(each) for each in value):
        return bool(set.intersection(*(set(each) for each in value)))
    first = value[0]
    if (
        isinstance(first, (Tensor, PackedSequence))
        or is_list(first)
        or len({*map(type, value)}) > 1
    ):
        return False
    is_record = has_fields(first) or isinstance(first, tuple) or is_object(first)
    return is_record or has_tensors(first)


def _may_list_samples(value: Any) -> bool:
    """Return whether a value is a list of entries of one kind, as those of several samples are."""
    if not is_list(value):
        return False
    if isinstance(value, (range, array)):
        return True
    return len({_kind(each) for each in value if each is not None}) == 1


def _kind(entry: Any) -> Any:
    if isinstance(entry, Tensor):
        return "nested" if entry.is_nested else (entry.dim(), entry.dtype)
    if isinstance(entry, Mapping) and not is_object(entry):
        return Mapping
    if isinstance(entry, (bool, int, float, complex)):
        return float
    return list if is_list(entry) else type(entry)


def _lists_tensors(entries: Any) -> bool:
    return all(isinstance(entry, (Tensor, PackedSequence)) for entry in entries)


def _looks_like_setting(entries: Any) -> bool:
    """Return whether entries are a tuple of numbers, such as a size in pixels."""
    numbers = (bool, int, float, complex, type(None))
    return isinstance(entries, tuple) and all(isinstance(each, numbers) for each in entries)


def _describe(found: _List) -> str:
    first = found.entries[0]
    if isinstance(first, Mapping):
        kind = "dicts"
    elif isinstance(first, Tensor):
        kind = "tensors"
    else:
        kind = f"{type(first).__name__} objects"
    return f"a {type(found.entries).__name__} of {len(found)} {kind}"


def _slots(tree: Any, is_call: bool) -> Iterator[tuple[Path, Any]]:
    if not is_call:
        yield (), tree
        return
    args, kwargs, *target = tree
    yield from ((((("[{}]", 0)), ("[{}]", i)), value) for i, value in enumerate(args))
    yield from ((((("[{}]", 1)), ("[{!r}]", key)), value) for key, value in kwargs.items())
    yield from (((("[{}]", 2),), value) for value in target)
