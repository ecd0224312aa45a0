"""The versions of PyTorch with which the tests of all rooms passed."""

from __future__ import annotations

import re

OLDEST = (2, 11)
NEWEST = (2, 15)


def major_and_minor(text: str) -> tuple[int, int]:
    """Return the numbers of a version such as ``"2.16.0a0+git1234"``."""
    major, minor = re.findall(r"\d+", text)[:2]
    return int(major), int(minor)


def as_text(version: tuple[int, int]) -> str:
    """Return a version as ``"2.11"``."""
    return f"{version[0]}.{version[1]}"


def range_for_pip() -> str:
    """Return the tested versions as pip takes them: ``torch>=2.11,<2.16``."""
    return f"torch>={as_text(OLDEST)},<{NEWEST[0]}.{NEWEST[1] + 1}"


def is_newer_than_tested() -> bool:
    """Return whether the installed PyTorch is newer than every tested version. Imports torch."""
    import torch

    return major_and_minor(str(torch.__version__)) > NEWEST
