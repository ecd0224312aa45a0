"""The fractions of published rates that large workloads reach, by kind of work."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_OTHERWISE = "otherwise"


@dataclass(frozen=True)
class Fraction:
    """The fraction of a published rate that large workloads reach, from 0 to 1.

    Attributes:
        fraction: reached rate over published rate.
        source: the publication or measurement behind the fraction.
    """

    fraction: float
    source: str

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"a fraction lies between 0 and 1, and this is {self.fraction}")


def fraction_of(kind: str, architecture: str) -> Fraction:
    """Return the fraction that `kind` of work reaches on GPUs of `architecture`.

    Args:
        kind: ``product``, ``convolution`` or ``attention``, a fraction of the FLOP/s of their
            dtype; ``memory``, ``link``, ``pcie`` or ``network``, a fraction of bytes per second.
        architecture: as in `Spec.architecture`.

    Raises:
        KeyError: there is no such kind.
    """
    of_kind = fractions()[kind]
    return of_kind.get(architecture, of_kind[_OTHERWISE])


@functools.cache
def fractions() -> Mapping[str, Mapping[str, Fraction]]:
    """Return every known fraction by kind of work and architecture; see `fractions.toml`."""
    text = resources.files(__package__).joinpath("fractions.toml").read_text(encoding="utf-8")
    tables: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(text)
    return MappingProxyType(
        {
            kind: MappingProxyType({name: Fraction(**entry) for name, entry in table.items()})
            for kind, table in tables.items()
        }
    )
