"""The last line that a process wrote, without the warnings of Python that came after it."""

from __future__ import annotations

import re

# `warnings.formatwarning` writes this line, and the line of the program below it, indented.
_WARNING = re.compile(r"\S.*:\d+: \w*Warning: ")


def last_line(text: str) -> str | None:
    """Return the last line that is not empty."""
    seen = _visible(text)
    return seen[-1].strip() if seen else None


def last_line_before_warnings(text: str) -> str | None:
    """Return the last line that is not empty and not part of a warning of Python."""
    seen = _visible(text)
    while seen:
        if _WARNING.match(seen[-1]):
            seen.pop()
        elif len(seen) > 1 and seen[-1].startswith("  ") and _WARNING.match(seen[-2]):
            del seen[-2:]
        else:
            return seen[-1].strip()
    return None


def _visible(text: str) -> list[str]:
    # A progress bar rewrites its line: only the text after the last carriage return is visible.
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return [line for line in lines if line.strip()]
