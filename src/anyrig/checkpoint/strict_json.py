"""Read JSON from an untrusted source: hostile texts raise nothing but ``ValueError``."""

from __future__ import annotations

import json
from typing import Any

# Longer keys are cut in messages.
_MOST_SHOWN = 200


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
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"it has the key {name[:_MOST_SHOWN]!r} twice")
            seen.add(name)
    return found
