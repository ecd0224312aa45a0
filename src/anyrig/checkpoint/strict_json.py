"""Read JSON from an untrusted source: hostile texts raise nothing but ``ValueError``."""

from __future__ import annotations

import json
from typing import Any


def read_strict_json(text: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is not JSON, names one key twice, or is nested too deeply.
    """
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has the key {twice!r} twice")
    return found
