"""Comments that silence rules: ``# noqa`` and ``# noqa: ARC101, ARC103``."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NOQA = re.compile(
    r"#\s*noqa(?P<codes>:\s*(?P<list>[A-Z]+\d+(?:[\s,]+[A-Z]+\d+)*))?", re.IGNORECASE
)


class Noqa:
    """The lines of a text on which rules are silenced."""

    def __init__(self, text: str) -> None:
        self._codes: dict[int, frozenset[str]] = {}
        if "noqa" not in text.lower():
            return
        for number, line in enumerate(re.split("\r\n|\n|\r", text), start=1):
            match = _NOQA.search(line)
            if match is not None:
                listed = re.split(r"[\s,]+", match["list"].upper()) if match["list"] else []
                self._codes[number] = frozenset(listed)

    def silences(self, code: str, lines: Iterable[int]) -> bool:
        """Return whether a comment on one of the lines silences a rule."""
        if not self._codes:
            return False
        found = (self._codes.get(line) for line in lines)
        return any(codes is not None and (not codes or code in codes) for codes in found)
