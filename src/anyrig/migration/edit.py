"""Changes of a text by position, so that the rest of the text stays as it was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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
    accepted: set[Edit] = set()
    chosen = []
    for fix in fixes:
        new = set(fix.edits) - accepted
        if not any(_conflict(edit, other) for edit in new for other in accepted):
            accepted |= new
            chosen.append(fix)
    return tuple(chosen)


def _conflict(one: Edit, other: Edit) -> bool:
    if one.start == one.end and other.start == other.end:
        return one.start == other.start
    return one.start < other.end and other.start < one.end
