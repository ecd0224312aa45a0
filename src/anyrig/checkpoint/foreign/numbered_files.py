"""Find the numbered files of a model that has no index.

::

    model-00001-of-00002.safetensors
    model-00002-of-00002.safetensors
"""

from __future__ import annotations

import re
from pathlib import Path

from ...errors import CheckpointDamagedError

_NUMBERED = re.compile(r"(.+)-(\d{1,9})-of-(\d{1,9})\.(safetensors|bin)")
_MOST_FILES = 10**5


def find_numbered(folder: Path, files: list[str]) -> tuple[str, ...]:
    """Return the files of one set of numbered shards, if there is one set and nothing else.

    Raises:
        CheckpointDamagedError: a file of the set is missing.
    """
    matches = [_NUMBERED.fullmatch(name) for name in files]
    sets = {(match[1], match[3]) if match else None for match in matches}
    if len(sets) != 1 or None in sets:
        return ()
    numbers = {int(match[2]): name for match, name in zip(matches, files, strict=True) if match}
    count = int(next(match[3] for match in matches if match))
    missing = sorted({*range(1, min(count, _MOST_FILES) + 1)} - {*numbers})
    if missing or len(numbers) != len(files) or count != len(files):
        raise CheckpointDamagedError(
            f"{folder} has {len(files)} of {count} numbered files, such as {files[0]}, and no "
            f"index; number {missing[0] if missing else files[-1]} is missing or odd. Copy or "
            "download the missing files, or give one file itself to read its part"
        )
    return tuple(numbers[number] for number in sorted(numbers))
