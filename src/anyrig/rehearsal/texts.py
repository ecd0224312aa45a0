"""The names in a rehearsal's facts, each of which has a number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path


class Texts:
    """Distinct texts, numbered from 0 in the order in which they were asked for."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number_of(self, text: str) -> int:
        """Return the number of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    def numbers_of(self, texts: Iterable[str]) -> list[int]:
        """Return the numbers of several texts."""
        return [self.number_of(text) for text in texts]

    def all(self) -> tuple[str, ...]:
        """Return all texts, by number."""
        return tuple(self._numbers)


def name_lines(lines: Iterable[tuple[str, int]]) -> list[str]:
    """Return a short name of each line (file, number), such as ``train.py:31``.

    Files with the same name have the folder in front: ``layers/model.py:7``.
    """
    lines = list(lines)
    by_name = defaultdict(set)
    for file, _ in lines:
        by_name[Path(file).name].add(file)
    return [f"{_short_name(Path(file), by_name)}:{number}" for file, number in lines]


def _short_name(file: Path, by_name: dict[str, set[str]]) -> str:
    is_unique = len(by_name[file.name]) == 1
    return file.name if is_unique else f"{file.parent.name}/{file.name}"
