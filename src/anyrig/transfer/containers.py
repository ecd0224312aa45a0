"""Take a container apart into items and attributes, and rebuild it with others."""

from __future__ import annotations

import copy
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterator, Mapping
from types import MemberDescriptorType
from typing import Any

import torch

# The format and the value of one step of a path; formatted only for an error.
Part = tuple[str, object]

_ITEM_TYPES = (Mapping, list, tuple, set, frozenset, deque)
_WITHOUT_ATTRIBUTES = frozenset({dict, list, tuple, set, frozenset, deque})
# Attributes of classes whose objects are their fields: of dataclasses, attrs and pydantic.
_MARKS = ("__dataclass_fields__", "__attrs_attrs__", "__pydantic_fields_set__")


def is_container(value: object, movable: bool = False) -> bool:
    """Return whether `value` is a container; see `anyrig.transfer.tree` for the list.

    An object with a method `to` moves itself, so it is a container only if `movable`.
    """
    if type(value) in _WITHOUT_ATTRIBUTES:
        return True
    if isinstance(value, (UserDict, UserList)):
        return True  # even if it has a method `to`: its layout is known
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return False
    if not movable and has_method(value, "to"):
        return False
    return isinstance(value, _ITEM_TYPES) or has_fields(value)


def has_fields(value: object) -> bool:
    """Return whether an object consists of fields: of a dataclass, attrs or pydantic."""
    return any(hasattr(type(value), mark) for mark in _MARKS)


def has_method(value: object, name: str) -> bool:
    """Return whether the class of `value` defines a method `name`.

    An instance may have any attribute (a dictionary with attribute access), so only its class
    counts. For a class, which may itself be a value in a tree, the answer is no.
    """
    return not isinstance(value, type) and callable(getattr(type(value), name, None))


def items_of(container: Any) -> Iterator[tuple[Part, Any]]:
    """Yield the items of a container in order, or nothing if its attributes hold everything."""
    if isinstance(container, (UserDict, UserList)) or not isinstance(container, _ITEM_TYPES):
        return
    if isinstance(container, Mapping):
        for key, value in container.items():
            yield ("[{!r}]", key), value
    elif isinstance(container, (set, frozenset)):
        for element in container:
            yield ("{{{}}}", "…"), element
    elif isinstance(container, tuple) and hasattr(container, "_fields"):
        for name, element in zip(container._fields, container, strict=True):
            yield (".{}", name), element
    else:
        for index, element in enumerate(container):
            yield ("[{}]", index), element


def attributes_of(value: object) -> dict[str, Any]:
    """Return the attributes that an object stores, in its ``__dict__`` or in slots."""
    if type(value) in _WITHOUT_ATTRIBUTES or _is_structure_sequence(value):
        return {}
    stored = getattr(value, "__dict__", None)
    # A dictionary that is its own __dict__ has its items as attributes: they are walked as items.
    attributes = dict(stored) if isinstance(stored, dict) and stored is not value else {}
    for cls in type(value).__mro__:
        for name, member in cls.__dict__.items():
            if isinstance(member, MemberDescriptorType):
                try:
                    attributes[name] = member.__get__(value)
                except AttributeError:
                    continue  # a slot that was never filled
    return attributes


def children_of(value: object) -> list[tuple[Part, Any]]:
    """Return the items and the stored attributes of a container, with their places."""
    if type(value) in _WITHOUT_ATTRIBUTES:
        return [*items_of(value)]
    attributes = attributes_of(value).items()
    return [*items_of(value), *(((".{}", name), attribute) for name, attribute in attributes)]


def with_children(container: Any, before: list[tuple[Part, Any]], children: list[Any]) -> Any:
    """Return a container with `children` in place of `before`; the original if none changed.

    Raises:
        Exception: the class's code raised it, or does not support a copy with other items.
    """
    if all(new is old for new, (_, old) in zip(children, before, strict=True)):
        return container
    names = attributes_of(container)
    count = len(children) - len(names)
    return rebuild(container, children[:count], dict(zip(names, children[count:], strict=True)))


def rebuild(container: Any, items: list[Any], attributes: dict[str, Any]) -> Any:
    """Return a container of the same class with other items and attributes, given in full.

    No constructor runs, except for mappings that are not a dict: the values were already checked
    and converted when `container` was made.

    Raises:
        Exception: the class's code raised it, or does not support a copy with other items.
    """
    if type(container) is dict:
        return dict(zip(container, items, strict=True))
    clone = _builder(container)(container, items)
    for name, attribute in attributes.items():
        _set_attribute(clone, name, attribute)
    return clone


def _builder(container: Any) -> Callable[[Any, list[Any]], Any]:
    if isinstance(container, (UserDict, UserList)) or not isinstance(container, _ITEM_TYPES):
        return _build_blank
    if _is_structure_sequence(container):
        return _build_structure_sequence
    for base, build in _BUILDERS.items():
        if isinstance(container, base):
            return build
    raise TypeError(f"not a container: {type(container).__name__}")


def _build_blank(container: Any, items: list[Any]) -> Any:
    return object.__new__(type(container))


def _copy(container: Any) -> Any:
    clone = copy.copy(container)
    if clone is container:  # the original must not be changed
        raise TypeError("copy.copy() returns the object itself")
    return clone


def _build_dict(container: Any, items: list[Any]) -> Any:
    # The copy keeps the other attributes of a dict subclass, such as a default factory.
    clone = _copy(container)
    for key, item in zip(container, items, strict=True):
        dict.__setitem__(clone, key, item)
    if getattr(container, "__dict__", None) is container:
        clone.__dict__ = clone
    return clone


def _build_mapping(container: Any, items: list[Any]) -> Any:
    clone = type(container)(dict(zip(container, items, strict=True)))
    if list(clone) != list(container):
        raise TypeError("its constructor does not take a dict of its items")
    return clone


def _build_list(container: Any, items: list[Any]) -> Any:
    clone = _copy(container)
    list.__setitem__(clone, slice(None), items)
    return clone


def _build_deque(container: Any, items: list[Any]) -> Any:
    clone = _copy(container)  # with its length limit
    for index, item in enumerate(items):
        clone[index] = item
    return clone


def _build_set(container: Any, items: list[Any]) -> Any:
    clone = _copy(container)
    set.clear(clone)
    set.update(clone, items)
    return clone


def _build_structure_sequence(container: Any, items: list[Any]) -> Any:
    return type(container)(items)


_BUILDERS: dict[type, Callable[[Any, list[Any]], Any]] = {
    dict: _build_dict,
    Mapping: _build_mapping,
    list: _build_list,
    deque: _build_deque,
    set: _build_set,
    tuple: lambda container, items: tuple.__new__(type(container), items),
    frozenset: lambda container, items: frozenset.__new__(type(container), items),
}


def _is_structure_sequence(value: object) -> bool:
    """Return whether a value is a named tuple defined in C, such as those of torch.return_types."""
    return isinstance(value, tuple) and hasattr(type(value), "n_sequence_fields")


def _set_attribute(clone: Any, name: str, attribute: Any) -> None:
    stored = getattr(clone, "__dict__", None)
    if isinstance(stored, dict) and not isinstance(
        getattr(type(clone), name, None), MemberDescriptorType
    ):
        stored[name] = attribute  # bypasses frozen dataclasses and an overridden __setattr__
    else:
        object.__setattr__(clone, name, attribute)
