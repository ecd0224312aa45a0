"""How much longer the kernels of older libraries take than those of today."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Version = tuple[int, ...]

_NAMED = re.compile(r"([a-z]+)=(\d+(?:\.\d+)*)")


@dataclass(frozen=True)
class OlderKernels:
    """How much longer the kernels of an older library take.

    Attributes:
        library: the library, such as ``"torch"``.
        before: the first version whose kernels take no longer than today's.
        coefficient: the full name of a coefficient of the clock.
        adds: what to add to it, in its unit.
        source: the measurement.
    """

    library: str
    before: Version
    coefficient: str
    adds: float
    source: str


@functools.cache
def older_kernels() -> tuple[OlderKernels, ...]:
    """Return all that is known; see `older_libraries.toml`."""
    text = resources.files(__package__).joinpath("older_libraries.toml").read_text("utf-8")
    return tuple(
        OlderKernels(**{**entry, "before": _version(entry["before"])})
        for entry in tomllib.loads(text)["older"]
    )


def read_libraries(text: str) -> Mapping[str, Version]:
    """Return the versions that a text such as ``"torch=1.7.1"`` names.

    Raises:
        ValueError: it is not a list of libraries with versions, or nothing is known of a library.
    """
    known = sorted({one.library for one in older_kernels()})
    versions = {}
    for part in text.split(","):
        match = _NAMED.fullmatch(part.strip())
        if match is None or match[1] not in known:
            raise ValueError(
                f"cannot read {text!r} as versions of {' and '.join(known)}; write for example "
                f"{known[0]}=1.7.1"
            )
        versions[match[1]] = _version(match[2])
    return versions


def additions_of(libraries: Mapping[str, Version]) -> dict[str, float]:
    """Return what to add to coefficients of the clock, by full name, for these versions."""
    added: dict[str, float] = {}
    for one in older_kernels():
        if one.library in libraries and libraries[one.library] < one.before:
            added[one.coefficient] = added.get(one.coefficient, 0.0) + one.adds
    return added


def _version(text: str) -> Version:
    return tuple(map(int, text.split(".")))
