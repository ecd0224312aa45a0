"""The versions of PyTorch with which virtual GPUs work."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from ..errors import VirtualRigError
from ..private_names import PrivateName, find_missing

# The oldest and the newest version with which the tests of virtual GPUs passed.
OLDEST = (2, 11)
NEWEST = (2, 15)


def check_torch() -> None:
    """Report a PyTorch that is newer than the tested versions, before anything is built for it.

    Raises:
        VirtualRigError: the installed PyTorch is too old, or so new that names are missing.
    """
    import torch

    check_version(str(torch.__version__), find_missing)


def check_version(text: str, find_missing_names: Callable[[], list[PrivateName]]) -> None:
    """Do the same as `check_torch` for the version `text` and the given missing names."""
    version = major_and_minor(text)
    if version < OLDEST:
        raise VirtualRigError(
            f"virtual GPUs need PyTorch {_text(OLDEST)} or later, and this is {text}; install one "
            f"with: pip install 'torch>={_text(OLDEST)}'"
        )
    missing = find_missing_names()
    if missing:
        names = "; ".join(f"{one.name}, for {one.breaks}" for one in missing[:3])
        others = f"; and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise VirtualRigError(
            f"virtual GPUs cannot work with PyTorch {text}, which does not have {names}{others}; "
            f"install a version with which they were tried: pip install "
            f"'torch>={_text(OLDEST)},<{NEWEST[0]}.{NEWEST[1] + 1}'"
        )
    if version > NEWEST:
        sys.stderr.write(
            f"anyrig: PyTorch {text} is newer than {_text(NEWEST)}, the newest with which virtual "
            "GPUs were tried, so their results may be wrong.\n"
        )


def is_newer_than_tried() -> bool:
    """Return whether the installed PyTorch is newer than those with which the tests passed."""
    import torch

    return major_and_minor(str(torch.__version__)) > NEWEST


def major_and_minor(text: str) -> tuple[int, int]:
    """Return the numbers of a version such as ``"2.16.0a0+git1234"``."""
    major, minor = re.findall(r"\d+", text)[:2]
    return int(major), int(minor)


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
