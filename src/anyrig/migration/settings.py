"""The table `[tool.anyrig]` of pyproject.toml."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ..errors import SourceError
from ..regular_file import read_regular
from .source_file import MOST_SOURCE_BYTES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Settings:
    """What a project asks of `anyrig check`.

    Attributes:
        select: codes of rules, or their beginnings; empty for all.
        ignore: codes of rules, or their beginnings.
        exclude: patterns of files and folders that are not checked.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def read_settings(start: Path) -> Settings:
    """Return the settings of the nearest pyproject.toml with such a table, at or above a path.

    Raises:
        SourceError: a file cannot be read, or the table has an unknown key or a wrong value.
    """
    folder = start.resolve()
    for each in (folder, *folder.parents):
        path = each / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            text = read_regular(path, MOST_SOURCE_BYTES, follow_links=True).decode()
            table = tomllib.loads(text).get("tool", {}).get("anyrig")
        except (OSError, ValueError, AttributeError) as error:
            raise SourceError(f"{path} cannot be read: {error}") from error
        if table is not None:
            return _checked(path, table)
    return Settings()


def _checked(path: Path, table: object) -> Settings:
    names = ("select", "ignore", "exclude")
    if not isinstance(table, dict):
        raise SourceError(f"{path}: tool.anyrig is {table!r}; write a table")
    values: dict[str, tuple[str, ...]] = {}
    for key, value in table.items():
        if key not in names:
            raise SourceError(f"{path}: tool.anyrig has no key {key!r}; it has {', '.join(names)}")
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise SourceError(f"{path}: tool.anyrig.{key} is {value!r}; write a list of strings")
        values[key] = tuple(value)
    return Settings(**values)
