"""Whether virtual GPUs work with the installed version of PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ..errors import VirtualRigError
from ..private_names import (
    NEWEST,
    OLDEST,
    PrivateName,
    as_text,
    describe_missing,
    major_and_minor,
    missing_in_room,
)


def check_torch() -> None:
    """Report a PyTorch that is newer than the tested versions, before anything is built for it.

    Names are looked for in every version: a build from source may not have all of them.

    Raises:
        VirtualRigError: the installed PyTorch is too old, or so new that names are missing.
    """
    import torch

    check_version(str(torch.__version__), lambda: missing_in_room("virtual").missing)


def check_version(text: str, find_missing_names: Callable[[], Sequence[PrivateName]]) -> None:
    """Do the same as `check_torch` for the version `text` and the given missing names."""
    version = major_and_minor(text)
    if version < OLDEST:
        raise VirtualRigError(
            f"virtual GPUs need PyTorch {as_text(OLDEST)} or later, and this is {text}; install "
            f"one with: pip install 'torch>={as_text(OLDEST)}'"
        )
    missing = find_missing_names()
    if missing:
        raise VirtualRigError(describe_missing("virtual", text, missing))
    if version > NEWEST:
        sys.stderr.write(
            f"anyrig: PyTorch {text} is newer than {as_text(NEWEST)}, the newest with which "
            "virtual GPUs were tried, so their results may be wrong.\n"
        )
