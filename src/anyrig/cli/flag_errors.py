"""The flag whose value an error is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def refused_as(flag: str) -> Iterator[None]:
    """Name `flag` in the error if the block raises a `ReportError`."""
    from ..errors import ReportError

    try:
        yield
    except ReportError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None
