"""The names that code refers to."""

from __future__ import annotations

from types import CodeType


def names_in_code(code: CodeType) -> set[str]:
    """Return the names of globals and attributes in code, and in the functions within it."""
    names: set[str] = set()
    left = [code]
    while left:
        each = left.pop()
        names.update(each.co_names)
        left += [constant for constant in each.co_consts if isinstance(constant, CodeType)]
    return names
