"""Dataclasses as JSON between nodes; every value is checked on arrival."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")


class BadMessageError(ValueError):
    """A string is not the JSON of the expected dataclass."""


def write_json(value: Any) -> str:
    """Return a dataclass as one line of JSON; enumerations are written by value."""
    return json.dumps(asdict(value), default=lambda member: member.value)


def read_json(kind: type[Kind], text: bytes | str) -> Kind:
    """Return the dataclass of type `kind` that `write_json` wrote.

    Raises:
        BadMessageError: the string is anything else. Even a hostile string raises no other
            exception.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMessageError(f"it is not JSON ({type(error).__name__})") from None
    value: Kind = _read(kind, data, kind.__name__)
    return value


def _read(kind: Any, data: Any, name: str) -> Any:
    """Return `data`, checked and converted to the annotation `kind`; `name` is for errors."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        types = get_type_hints(kind)
        if not isinstance(data, dict) or data.keys() != types.keys():
            raise BadMessageError(f"its fields are not those of a {name}")
        fields = {field: _read(types[field], value, field) for field, value in data.items()}
        return kind(**fields)  # type: ignore[operator]
    if origin is UnionType:  # with None
        return None if data is None else _read(inner[0], data, name)
    if origin is tuple and isinstance(data, list):
        return tuple(_read(inner[0], each, name) for each in data)
    if origin is dict and isinstance(data, dict):
        return {key: _read(inner[1], each, name) for key, each in data.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        with suppress(ValueError):
            return kind(data)
    if type(data) is not kind:
        raise BadMessageError(f"its {name} is of type {type(data).__name__}")
    return data
