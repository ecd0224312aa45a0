"""The flag that names the prices of GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from .flag_errors import refused_as

if TYPE_CHECKING:
    from ..rehearsal.comparison.prices import Prices

PRICES = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads it on Python 3.10 too
    typer.Option(
        "--prices", metavar="FILE", help="A TOML file with the price of an hour of each GPU."
    ),
]


def read_prices(file: Path | None) -> Prices | None:
    """Return the prices in a file, if there is one.

    Raises:
        typer.BadParameter: the file has no prices.
    """
    from ..rehearsal.comparison.prices import Prices

    if file is None:
        return None
    with refused_as("--prices"):
        return Prices.read(file)
