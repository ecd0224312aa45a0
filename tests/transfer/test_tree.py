from __future__ import annotations

import types
import weakref
from collections import OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from anyrig.errors import MoveError
from anyrig.transfer.tree import format_path, map_leaves


def negate(leaf: Any, path: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return ~leaf if leaf.dtype is torch.bool else -leaf


def keep(leaf: Any, path: Any) -> Any:
    return leaf


def one() -> torch.Tensor:
    return torch.ones(2)


Point = namedtuple("Point", "x y")


class Tagged(NamedTuple):
    data: torch.Tensor
    tag: str = "t"


class CheckedTuple(tuple):
    """A tuple whose constructor wants more than its elements."""

    def __new__(cls, elements: Any, unit: str) -> CheckedTuple:
        self = super().__new__(cls, elements)
        self.unit = unit
        return self


class AttributeDict(dict):
    """The widespread idiom: items are attributes and attributes are items."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__ = self


class Output(OrderedDict):
    """A dictionary that keeps a tensor in an attribute too, and refuses `update`."""

    def update(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        raise RuntimeError("read only")


class Frozen(Mapping):
    def __init__(self, items: dict[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Any:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Unbuildable(Frozen):
    def __init__(self, one: int, two: int) -> None:
        super().__init__({"a": torch.ones(1)})


@dataclass
class Plain:
    x: torch.Tensor
    name: str = "n"
    derived: torch.Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.derived = self.x * 10

    @cached_property
    def mask(self) -> torch.Tensor:
        return self.x > 0


@dataclass(frozen=True)
class FrozenPoint:
    x: torch.Tensor


@dataclass(frozen=True)
class FrozenSlots:
    __slots__ = ("x", "y")
    x: torch.Tensor
    y: int


@dataclass
class Slots:
    __slots__ = ("never_set", "x")
    x: torch.Tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda t: {"a": t},
        lambda t: OrderedDict(b=1, a=t),
        lambda t: AttributeDict(a=t),
        lambda t: Output(a=t, b=2),
        lambda t: UserDict(a=t),
        lambda t: Frozen({"a": t}),
        lambda t: types.MappingProxyType({"a": t}),
    ],
)
def test_mapping_keeps_its_type_keys_and_order(make: Any) -> None:
    before = make(one())
    after = map_leaves(before, negate)
    assert type(after) is type(before)
    assert list(after) == list(before)
    assert after["a"].tolist() == [-1, -1]
    assert before["a"].tolist() == [1, 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda t: [t, 1],
        lambda t: (t, 1),
        lambda t: deque([t, 1], maxlen=3),
        lambda t: Point(t, 1),
        lambda t: Tagged(t),
        lambda t: UserList([t, 1]),
        lambda t: CheckedTuple((t, 1), "m"),
    ],
)
def test_sequence_keeps_its_type_and_other_elements(make: Any) -> None:
    before = make(one())
    after = map_leaves(before, negate)
    assert type(after) is type(before)
    assert after[0].tolist() == [-1, -1]
    assert after[1] == before[1]
    assert before[0].tolist() == [1, 1]


def test_what_a_container_knows_of_itself_is_kept() -> None:
    counts = defaultdict(list, a=one())
    assert map_leaves(counts, negate).default_factory is list
    assert map_leaves(deque([one()], maxlen=3), negate).maxlen == 3
    assert map_leaves(CheckedTuple((one(),), "m"), negate).unit == "m"


def test_attributes_of_containers_are_mapped() -> None:
    for output in (Output(a=1), OrderedDict(a=1), UserDict(a=1)):
        output.loss = one()
        after = map_leaves(output, negate)
        assert after.loss.tolist() == [-1, -1]
        assert output.loss.tolist() == [1, 1]

    settings = map_leaves(AttributeDict(a=one()), negate)
    assert settings.a is settings["a"]


def test_structure_sequence_of_c() -> None:
    after = map_leaves(torch.max(torch.ones(2, 2), 0), negate)
    assert type(after) is torch.return_types.max
    assert after.values.tolist() == [-1, -1]


def test_sets() -> None:
    (element,) = map_leaves({one()}, negate)
    assert element.tolist() == [-1, -1]
    frozen = map_leaves(frozenset({one(), 3}), negate)
    assert type(frozen) is frozenset
    assert 3 in frozen


def test_dataclass_with_derived_and_cached_values() -> None:
    before = Plain(one())
    assert before.mask.all()
    after = map_leaves(before, negate)
    assert (after.x.tolist(), after.derived.tolist(), after.name) == ([-1, -1], [-10, -10], "n")
    assert not after.mask.any()
    assert before.x.tolist() == [1, 1]


@pytest.mark.parametrize("make", [FrozenPoint, lambda t: FrozenSlots(t, 1), Slots])
def test_dataclass_frozen_and_with_slots(make: Any) -> None:
    before = make(one())
    after = map_leaves(before, negate)
    assert type(after) is type(before)
    assert after.x.tolist() == [-1, -1]
    assert before.x.tolist() == [1, 1]


def test_packed_sequence_leaves_batch_sizes_alone() -> None:
    packed = pack_sequence([torch.ones(2), torch.ones(3)], enforce_sorted=False)
    after = map_leaves(packed, lambda leaf, path: leaf.to("meta"))
    assert type(after) is type(packed)
    assert after.data.is_meta
    assert after.sorted_indices.is_meta
    assert after.batch_sizes is packed.batch_sizes
    assert map_leaves(packed, keep) is packed


def test_shared_leaves_and_containers_are_one_object_afterwards() -> None:
    tensor = one()
    shared = [tensor]
    after = map_leaves({"a": shared, "b": shared, "c": (tensor,)}, negate)
    assert after["a"] is after["b"]
    assert after["c"][0] is after["a"][0]


def test_shared_leaf_is_mapped_once() -> None:
    tensor, seen = one(), []
    map_leaves([tensor, {"a": tensor}], lambda leaf, path: seen.append(leaf) or leaf)
    assert len(seen) == 1


class Making(Frozen):
    """A mapping that makes its tensors when they are asked for."""

    def __getitem__(self, key: str) -> Any:
        return self._items[key].clone()


def test_leaves_that_nothing_else_holds_are_kept_until_the_end() -> None:
    """A later leaf might otherwise get the id of an earlier one, and be taken for it."""
    seen: list[weakref.ref[torch.Tensor]] = []

    def note(leaf: torch.Tensor, path: Any) -> torch.Tensor:
        seen.append(weakref.ref(leaf))
        assert all(each() is not None for each in seen)
        return -leaf

    map_leaves([Making({"a": one()}), Making({"a": one()})], note)
    assert len(seen) == 4  # what was made, and what the attributes hold


def test_unchanged_containers_are_returned_as_themselves() -> None:
    inner = [one(), 1]
    tree = {"a": inner, "b": Plain(one()), "c": UserDict(x=1)}
    assert map_leaves(tree, keep) is tree
    changed = map_leaves([inner, torch.zeros(1)], lambda t, _: t + 1 if t.numel() == 1 else t)
    assert changed[0] is inner


def test_object_with_a_method_to_is_a_leaf_even_if_it_is_a_container() -> None:
    class Movable(dict):
        def to(self, device: Any) -> None: ...

    movable = Movable(a=one())
    leaves: list[Any] = []
    map_leaves([movable], lambda leaf, path: leaves.append(leaf) or leaf)
    assert leaves == [movable]


def test_paths_are_written_as_in_python() -> None:
    paths: list[str] = []
    tree = {"image": [Plain(one()), Tagged(one())], 3: {one()}}
    map_leaves(tree, lambda leaf, path: paths.append(format_path(path)) or leaf)
    assert paths == [
        "['image'][0].x",
        "['image'][0].derived",
        "['image'][1].data",
        "[3]{…}",
    ]
    assert format_path(()) == "the value"


def test_cycle() -> None:
    cycle: dict[str, Any] = {"a": [one()]}
    cycle["a"].append(cycle)
    with pytest.raises(MoveError, match=r"dict at \['a'\]\[1\] contains itself"):
        map_leaves(cycle, keep)


def test_tensor_as_key() -> None:
    with pytest.raises(MoveError, match=r"dict at \['state'\] has a tensor as a key"):
        map_leaves({"state": {one(): 1}}, keep)


def test_container_that_cannot_be_built_again() -> None:
    with pytest.raises(MoveError, match=r"Unbuildable at \[0\] cannot be rebuilt"):
        map_leaves([Unbuildable(1, 2)], negate)
    assert map_leaves(unchanged := [Unbuildable(1, 2)], keep) is unchanged


def test_containers_may_be_taken_as_leaves() -> None:
    packed, size = pack_sequence([one()]), one().shape
    leaves: list[Any] = []

    def note(leaf: Any, path: Any) -> Any:
        leaves.append(leaf)
        return leaf

    tree = {"packed": packed, "size": [size]}
    assert map_leaves(tree, note, (type(packed), torch.Size)) is tree
    assert leaves == [packed, size]
    assert map_leaves(packed, lambda leaf, path: 3, (type(packed),)) == 3


class SameList(list):
    """A list whose copy is the list itself."""

    def __copy__(self) -> SameList:
        return self


class SameDict(dict):
    def __copy__(self) -> SameDict:
        return self


class SameSet(set):
    def __copy__(self) -> SameSet:
        return self


class SameDeque(deque):
    def __copy__(self) -> SameDeque:
        return self


class Forgetful(Frozen):
    """A mapping whose constructor drops items."""

    def __init__(self, items: dict[str, Any], *, first: str = "a") -> None:
        super().__init__({"a": items["a"], **({"b": 2} if first == "b" else {})})


@pytest.mark.parametrize(
    "make",
    [
        lambda t: SameList([t]),
        lambda t: SameDict(a=t),
        lambda t: SameSet([t]),
        lambda t: SameDeque([t]),
    ],
)
def test_a_container_that_cannot_be_copied_is_refused_and_not_changed(make: Any) -> None:
    tensor = one()
    container = make(tensor)
    words = rf"{type(container).__name__} at the value .* \(TypeError: copy\.copy\(\) returns the"
    with pytest.raises(MoveError, match=words):
        map_leaves(container, negate)
    elements = list(container.values()) if isinstance(container, dict) else list(container)
    assert elements[0] is tensor
    assert map_leaves(container, keep) is container


def test_a_mapping_that_loses_items_in_its_constructor_is_refused() -> None:
    words = r"its constructor does not take a dict of its items\); give its class a method"
    with pytest.raises(MoveError, match=words):
        map_leaves(Forgetful({"a": one()}, first="b"), negate)


def test_numbers_texts_and_none_are_not_asked_about() -> None:
    asked: list[Any] = []
    values = [None, True, 1, 1.5, 1j, "text", b"bytes", range(2)]
    assert map_leaves(values, lambda leaf, path: asked.append(leaf) or leaf) is values
    assert asked == [range(2)]


def test_attributes_in_slots_and_in_a_dictionary_are_both_kept() -> None:
    class Open(FrozenSlots):
        """A subclass without slots has a dictionary too."""

    before = Open(one(), 1)
    before.__dict__["extra"] = [one()]
    after = map_leaves(before, negate)
    assert (type(after), after.x.tolist(), after.y) == (Open, [-1, -1], 1)
    assert after.extra[0].tolist() == [-1, -1]
    assert "x" not in vars(after)
    assert before.extra[0].tolist() == [1, 1]
