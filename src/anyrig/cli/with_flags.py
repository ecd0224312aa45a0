"""Dataclasses of flags, which become the options of typer commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Turn each parameter of a command that is a dataclass into one option per field.

    The wrapped command receives instances of the dataclasses. Each field is annotated as a
    parameter of a typer command is.
    """
    groups: dict[str, type] = {}
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if not is_dataclass(group):
            options.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        assert isinstance(group, type)
        groups[parameter.name] = group
        types = get_type_hints(group, include_extras=True)
        options += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=types[field.name],
            )
            for field in fields(group)
        ]

    def with_options(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    with_options.__name__, with_options.__doc__ = command.__name__, _unwrapped(command.__doc__)
    with_options.__annotations__ = {}  # typer falls back to those of the signature
    with_options.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return with_options


def _unwrapped(text: str | None) -> str | None:
    """Return a docstring with each paragraph on one line: typer keeps the line breaks."""
    if text is None:
        return None
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
