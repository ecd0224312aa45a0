"""Watch a process that a test has forked, if the test is watched; see `watched_tests.py`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Names the folder in which each process leaves the hazards that it has found.
VARIABLE = "HAZARDS_OF_TESTS"


@contextmanager
def watched_process() -> Iterator[None]:
    """Watch this process for hazards, if a folder is named, until the block ends."""
    folder = os.environ.pop(VARIABLE, None)  # this process's children are not watched
    if folder is None:
        yield
        return
    from anyrig.hazards import watch_hazards

    try:
        with watch_hazards(warn=False) as hazards:
            yield
    finally:
        found = json.dumps([hazard.as_json() for hazard in hazards])
        Path(folder, f"{os.getpid()}.part").write_text(found)
        Path(folder, f"{os.getpid()}.part").rename(Path(folder, f"{os.getpid()}.json"))
