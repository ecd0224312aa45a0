"""Changes of a text by position, so that the rest of the text stays as it was."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .lexer import split_tokens


@dataclass(frozen=True, order=True)
class Edit:
    """Replace the characters from `start` up to `end` with `text`."""

    start: int
    end: int
    text: str = ""


@dataclass(frozen=True)
class Fix:
    """Edits that are applied together or not at all.

    Attributes:
        edits: the changes.
        is_safe: whether the program computes the same afterwards, or could not run before.
    """

    edits: tuple[Edit, ...]
    is_safe: bool

    def keeps_comments(self, text: str) -> bool:
        """Return whether every comment of the text that the edits replace is in a new text."""
        return all(
            token.kind != "comment" or token.text in edit.text
            for edit in self.edits
            for token in split_tokens(text, edit.start, edit.end)
        )


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return the text with the edits, which must not overlap.

    Indentation that one edit adds to a line is dropped if another edit deletes the line.
    """
    ordered = sorted(edits)
    deleted = {
        edit.start
        for edit in ordered
        if not edit.text and text[edit.start : edit.end].endswith(("\n", "\r"))
    }
    parts, position = [], 0
    for edit in ordered:
        if edit.start == edit.end and edit.start in deleted and not edit.text.strip(" "):
            continue
        parts += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*parts, text[position:]])


def choose_compatible(fixes: Sequence[Fix]) -> tuple[Fix, ...]:
    """Return the fixes that can be applied together, in order; of two in conflict, the earlier one.

    Fixes may share an edit, such as an import that both need.
    """
    accepted = _Accepted()
    chosen = []
    for fix in fixes:
        new = set(fix.edits) - accepted.edits
        if not any(map(accepted.conflicts, new)):
            accepted.add(new)
            chosen.append(fix)
    return tuple(chosen)


class _Accepted:
    """Edits without conflicts, in the order of the text.

    An edit conflicts with another that replaces some of the same characters, or inserts within
    them. Two insertions conflict if they are at the same place.
    """

    def __init__(self) -> None:
        self.edits: set[Edit] = set()
        self._replaced: list[tuple[int, int]] = []  # (start, end), which do not overlap
        self._insertions: list[int] = []

    def add(self, edits: Iterable[Edit]) -> None:
        """Add edits that conflict with none of these. Fast if they follow all of these."""
        for edit in edits:
            self.edits.add(edit)
            if edit.start == edit.end:
                insort(self._insertions, edit.start)
            else:
                insort(self._replaced, (edit.start, edit.end))

    def conflicts(self, edit: Edit) -> bool:
        """Return whether an edit that is not among these conflicts with one of these."""
        before = bisect_left(self._replaced, (edit.end,)) - 1  # the last that starts before its end
        if before >= 0 and self._replaced[before][1] > edit.start:
            return True
        is_insertion = edit.start == edit.end
        first = bisect_left(self._insertions, edit.start + (not is_insertion))
        last = edit.end + is_insertion
        return first < len(self._insertions) and self._insertions[first] < last
