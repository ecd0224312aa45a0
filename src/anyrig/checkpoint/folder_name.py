"""The name of a checkpoint's folder: the number of the save in its series, and the step."""

from __future__ import annotations

import re

# A name with more digits is not a checkpoint's: no training run saves that often or takes that many
# steps.
_NAME = re.compile(r"([0-9]{6,15})(?:-step-([0-9]{1,19}))?")
LARGEST_NUMBER = 10**15 - 1
LARGEST_STEP = 2**63 - 1


def folder_name(number: int, step: int | None) -> str:
    """Return the name of a checkpoint's folder: ``000007-step-1200``."""
    return f"{number:06d}" if step is None else f"{number:06d}-step-{step}"


def is_folder_name(name: str) -> bool:
    """Return whether a name is that of a checkpoint's folder."""
    return _NAME.fullmatch(name) is not None


def number_in(name: str) -> int:
    """Return the number in the name of a checkpoint's folder; 0 for other names."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else 0
