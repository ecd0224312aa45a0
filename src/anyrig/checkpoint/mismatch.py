"""Compare the names and shapes of a model's tensors with those in a file.

::

    The model has 4 tensors; in the file 1 missing, 1 unexpected, 1 of another shape.
    missing     fc.weight     expected 10x512              nearest: head.weight (10x512)
    unexpected  head.weight   found 10x512                 nearest: fc.weight (10x512)
    shape       conv.weight   expected 8x3x3x3, found 8x1x3x3
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import KeyMismatchError
from ..units import format_count
from .wrapper_prefix import WrapperPrefixes, describe_wrapper, find_prefixes

Shape = tuple[int, ...]
Shapes = Mapping[str, Sequence[int]]

_MOST_ROWS = 12  # of each kind; a model of another architecture would fill pages
_MOST_CANDIDATES = 400  # difflib compares each row with all of them, at about 60 µs each


@dataclass(frozen=True)
class KeyMismatch:
    """How the tensors of a file differ from those that a model expects.

    Attributes:
        missing: the shape of each name that only the model has.
        unexpected: the shape of each name that only the file has.
        wrongly_shaped: (expected shape, found shape) of each name whose shapes differ.
        expected_count: how many tensors the model has.
        prefixes: the prefixes that wrappers added and that explain the difference, or None.
    """

    missing: Mapping[str, Shape]
    unexpected: Mapping[str, Shape]
    wrongly_shaped: Mapping[str, tuple[Shape, Shape]]
    expected_count: int
    prefixes: WrapperPrefixes | None = None

    def __str__(self) -> str:
        return format_mismatch(self)


def find_mismatch(expected: Shapes, found: Shapes) -> KeyMismatch | None:
    """Return how `found` differs from `expected`, or None if names and shapes agree."""
    missing = {name: tuple(shape) for name, shape in expected.items() if name not in found}
    unexpected = {name: tuple(shape) for name, shape in found.items() if name not in expected}
    wrong = {
        name: (tuple(shape), tuple(found[name]))
        for name, shape in expected.items()
        if name in found and tuple(shape) != tuple(found[name])
    }
    if not (missing or unexpected or wrong):
        return None
    prefixes = find_prefixes(expected.keys(), found.keys())
    return KeyMismatch(missing, unexpected, wrong, len(expected), prefixes)


def check_names(expected: Shapes, found: Shapes, where: str) -> None:
    """Raise if the tensors of a file do not fit a model.

    Args:
        expected: shape of each of the model's tensors, by name.
        found: shape of each of the file's tensors, by name.
        where: the file, for the message.

    Raises:
        KeyMismatchError: a name is missing, unexpected, or has another shape.
    """
    if (mismatch := find_mismatch(expected, found)) is not None:
        raise KeyMismatchError(f"{where} does not fit the model.\n{mismatch}")


def format_mismatch(mismatch: KeyMismatch) -> str:
    """Return a table of the names that differ, each with the nearest name of the other side."""
    missing, unexpected, wrong = mismatch.missing, mismatch.unexpected, mismatch.wrongly_shaped
    counts = [
        f"{len(names)} {kind}"
        for names, kind in ((missing, "missing"), (unexpected, "unexpected"))
        if names
    ]
    counts += [f"{len(wrong)} of another shape"] if wrong else []
    total = format_count(mismatch.expected_count, "tensor")
    lines = [f"The model has {total}; in the file {', '.join(counts)}."]
    lines += _explain(mismatch.prefixes)
    rows: list[tuple[str, str, str, str]] = []
    rows += _first_rows("missing", _one_sided("missing", "expected", missing, unexpected), missing)
    rows += _first_rows(
        "unexpected", _one_sided("unexpected", "found", unexpected, missing), unexpected
    )
    differing = (
        ("shape", name, f"expected {format_shape(one)}, found {format_shape(other)}", "")
        for name, (one, other) in wrong.items()
    )
    rows += _first_rows("shape", differing, wrong)
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=False))
        lines.append("  ".join([*cells, row[3]]).rstrip())
    return "\n".join(lines)


def nearest_name(name: str, candidates: Sequence[str]) -> str | None:
    """Return the candidate most similar to `name`, or None if none is similar."""
    if len(candidates) > _MOST_CANDIDATES:
        # The last part of a name ("weight") rarely changes, so keep the names that share it.
        last = name.rpartition(".")[2]
        candidates = [each for each in candidates if each.rpartition(".")[2] == last]
        candidates = candidates[:_MOST_CANDIDATES]
    return next(iter(difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)), None)


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape as text: ``"8x3x3"``, or ``"scalar"`` without dimensions."""
    return "x".join(map(str, shape)) if shape else "scalar"


def _explain(prefixes: WrapperPrefixes | None) -> list[str]:
    if prefixes is None:
        return []
    lines = [
        f"Every name of the {side} begins with {prefix!r}, which {describe_wrapper(prefix)} adds."
        for side, prefix in (("file", prefixes.of_file), ("model", prefixes.of_model))
        if prefix
    ]
    return [*lines, f"Without {'it' if len(lines) == 1 else 'them'}, the names agree."]


def _one_sided(
    kind: str, word: str, names: Mapping[str, Shape], others: Mapping[str, Shape]
) -> Iterator[tuple[str, str, str, str]]:
    candidates = [*others]
    for name, shape in names.items():
        near = nearest_name(name, candidates)
        hint = f"nearest: {near} ({format_shape(others[near])})" if near is not None else ""
        yield kind, name, f"{word} {format_shape(shape)}", hint


def _first_rows(
    kind: str, rows: Iterator[tuple[str, str, str, str]], names: Mapping[str, object]
) -> list[tuple[str, str, str, str]]:
    """Return the first rows, and a row that counts the rows left out."""
    first = [row for row, _ in zip(rows, range(_MOST_ROWS), strict=False)]
    left = len(names) - len(first)
    return [*first, (kind, f"… and {left} more", "", "")] if left else first
