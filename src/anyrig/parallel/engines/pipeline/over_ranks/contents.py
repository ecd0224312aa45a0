"""A value as text and tensors, from which another rank rebuilds the value.

The text is JSON, so no rank runs another rank's code. It says where the tensors are, their shapes
and dtypes, and whether they require gradients. Dataclasses and classes of dicts, such as the
outputs of transformers, are named, and each rank makes its own.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from .....errors import SpreadError

_ATOMS = (bool, int, float, str, type(None))
_LISTS = {"list": list, "tuple": tuple, "Size": torch.Size}
_DICTS = {"dict": dict, "OrderedDict": OrderedDict}


@dataclass(frozen=True)
class Contents:
    """What is sent for a value.

    Attributes:
        text: equal for values that differ only in the elements of their tensors.
        tensors: each once.
    """

    text: str
    tensors: Sequence[Tensor]


@dataclass(frozen=True)
class Form:
    """What a receiver must know about one tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @cached_property
    def bytes(self) -> int:
        """The size of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_value(value: Any, what: object) -> Contents:
    """Return what is sent for a value; `what` names the value in errors.

    Raises:
        SpreadError: the value has anything other than tensors, numbers, strings and devices in
            dicts, lists, tuples and dataclasses; or tensors that are not strided.
    """
    tensors: dict[int, tuple[int, Tensor]] = {}

    def write(part: Any) -> Any:
        if isinstance(part, Tensor):
            if part.layout is not torch.strided or part.is_nested:
                kind = "nested" if part.is_nested else str(part.layout)
                raise SpreadError(
                    f"{what} has a tensor that is {kind}, which cannot be sent to another rank; "
                    "cut the module elsewhere, or use one process for all devices"
                )
            return {"tensor": tensors.setdefault(id(part), (len(tensors), part))[0]}
        kind = type(part).__name__
        if type(part) in _ATOMS:
            return part
        if isinstance(part, torch.device):
            return {"device": part.type}
        if _LISTS.get(kind) is type(part):
            return {kind: [write(each) for each in part]}
        if _DICTS.get(kind) is type(part) and all(type(key) in _ATOMS for key in part):
            return {kind: [[key, write(each)] for key, each in part.items()]}
        name = _name_of(type(part))
        if name and dataclasses.is_dataclass(part):
            fields = [each.name for each in dataclasses.fields(part) if each.init]
            return {"dataclass": [name, [[each, write(getattr(part, each))] for each in fields]]}
        if name and isinstance(part, dict) and all(type(key) in _ATOMS for key in part):
            return {"mapping": [name, [[key, write(each)] for key, each in part.items()]]}
        raise SpreadError(
            f"{what} has a {type(part).__name__}, which cannot be sent to another rank; pass "
            "tensors, numbers and strings, in dicts, lists, tuples and dataclasses of a module, or "
            "use one process for all devices"
        )

    tree = write(value)
    found = [tensor for _, tensor in tensors.values()]
    forms = [
        (list(each.shape), str(each.dtype).removeprefix("torch."), each.requires_grad)
        for each in found
    ]
    return Contents(json.dumps([tree, forms]), found)


def forms_of(text: str) -> tuple[Form, ...]:
    """Return the forms of the tensors in a text."""
    return _parse(text)[1]


def make_value(text: str, tensors: Sequence[Tensor]) -> Any:
    """Return the value that a text describes; `tensors` become leaves if they need gradients."""
    leaves = [
        tensor.requires_grad_(form.requires_grad)
        for tensor, form in zip(tensors, forms_of(text), strict=True)
    ]

    def read(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        ((kind, content),) = part.items()
        if kind == "tensor":
            return leaves[content]
        if kind == "device":  # a device of a stage's tensors; the reader has them on its own
            return torch.empty(0, device=content).device
        if kind in _LISTS:
            return _LISTS[kind]([read(each) for each in content])
        if kind == "dataclass":
            name, fields = content
            return _class_of(name)(**{key: read(each) for key, each in fields})
        if kind == "mapping":
            name, content = content
            return _class_of(name)((key, read(each)) for key, each in content)
        return _DICTS[kind]((key, read(each)) for key, each in content)

    return read(_parse(text)[0])


@lru_cache(maxsize=1024)  # a pass sends the same texts as earlier passes
def _parse(text: str) -> tuple[Any, tuple[Form, ...]]:
    """Return the structure of the value that a text describes, and the forms of its tensors."""
    tree, forms = json.loads(text)
    return tree, tuple(
        Form(tuple(shape), getattr(torch, dtype), requires_grad)
        for shape, dtype, requires_grad in forms
    )


def _name_of(cls: type) -> str:
    """Return the name by which another rank finds a class; empty if it would not find it."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    return name if _class_of(name) is cls else ""


def _class_of(name: str) -> Any:
    """Return the class with this name if its module is imported; None otherwise."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
