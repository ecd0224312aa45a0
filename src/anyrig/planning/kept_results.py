"""The results of rehearsals, kept in the cache so that a second question is answered at once.

::

    ~/.cache/anyrig/fit/51b2….json        what one rehearsal wrote, by the hash of its order
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..memory.atomic_file import write_atomically
from ..rehearsal.comparison.rehearsed_apart import RehearsedApart
from ..virtual.library_cache import cache_folder
from .rehearsed_value import Order

# The texts of lines and operators, which nobody asks for later.
_LEFT_OUT = ("texts", "tracks", "intervals", "findings")
# The memory that is in use, and all columns of a curve.
_NEEDED = ("tensor_bytes", "workspace_bytes", "context_bytes")
_COLUMNS = ("seconds", "cached_bytes", *_NEEDED)


@dataclass(frozen=True)
class KeptResults:
    """Rehearsals by their orders.

    Attributes:
        folder: the folder of the files.
        fingerprint: the hash of the program and of what it runs with.
        is_read: whether to use results of earlier runs.
    """

    folder: Path
    fingerprint: str
    is_read: bool = True

    @classmethod
    def in_cache(cls, fingerprint: str, *, is_read: bool = True) -> KeptResults:
        """Return the results in the user's cache folder.

        Raises:
            BuildError: there is no cache folder.
        """
        return cls(cache_folder().parent / "fit", fingerprint, is_read)

    def find(self, order: Order) -> RehearsedApart | None:
        """Return the result that was kept for an order, or None."""
        if not self.is_read:
            return None
        try:
            found = json.loads(self._path(order).read_bytes())
            return RehearsedApart(int(found["status"]), dict(found["facts"]), found["last_line"])
        except (KeyError, OSError, TypeError, ValueError):  # never kept, or damaged
            return None

    def keep(self, order: Order, result: RehearsedApart) -> None:
        """Keep a result. One without facts, or that cannot be written, is silently not kept."""
        if result.facts is None:
            return
        short = RehearsedApart(result.status, _shortened(result.facts), result.last_line)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path(order), json.dumps(asdict(short)).encode())
        except OSError:
            return

    def _path(self, order: Order) -> Path:
        text = json.dumps([self.fingerprint, asdict(order)], sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def _shortened(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts, with memory only at its peak: tensors plus memory outside the allocator."""
    memory = []
    for one in facts["memory"]:
        needed = [sum(moment) for moment in zip(*(one[name] for name in _NEEDED), strict=True)]
        most = needed.index(max(needed)) if needed else 0
        memory.append({**one, **{name: one[name][most : most + 1] for name in _COLUMNS}})
    kept = {name: value for name, value in facts.items() if name not in _LEFT_OUT}
    return {**kept, "memory": memory}
