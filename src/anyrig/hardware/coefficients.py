"""What the clock of virtual GPUs knows about a GPU beyond its data sheet."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from types import MappingProxyType
from typing import Any

from .spec import Spec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OTHERWISE = "otherwise"
_ABOUT = frozenset({"source", "error_percent"})

# Kinds of work, as reports call them, and the groups of their coefficients.
_KINDS = {
    "products": "product.simt",
    "products on matrix units": "product.tensor",
    "convolutions": "convolution.simt",
    "convolutions on matrix units": "convolution.tensor",
    "attention": "attention",
    "memory-bound kernels": "memory",
    "collectives": "collective",
}


@dataclass(frozen=True)
class CoefficientGroup:
    """The coefficients of one group, fitted together.

    Attributes:
        group: the name of the group, such as ``"product.tensor"``.
        of: what the coefficients apply to: a GPU and its relatives by the GPU's key, an
            architecture, or ``"otherwise"``.
        values: the values by name; a coefficient with one value has a list of one.
        source: the measurements behind the values.
        error_percent: by GPU key, the median error on measurements that no fit used.
    """

    group: str
    of: str
    values: Mapping[str, list[float]] = field(hash=False)
    source: str
    error_percent: Mapping[str, float] = field(hash=False)


def coefficients_of(spec: Spec) -> tuple[CoefficientGroup, ...]:
    """Return the coefficients of a GPU, group by group.

    They are its own, else those of its nearest relative that has some, else its architecture's,
    else the general ones.
    """
    names = (spec.key, *spec.relatives, spec.architecture, OTHERWISE)
    return tuple(
        next(table[of] for of in names if of in table) for table in coefficient_groups().values()
    )


def values_of(groups: tuple[CoefficientGroup, ...]) -> dict[str, list[float]]:
    """Return the values of `groups` by full name, such as ``"product.tensor.overlap"``."""
    return {
        f"{group.group}.{name}": value for group in groups for name, value in group.values.items()
    }


def known_errors(spec: Spec) -> dict[str, float | None]:
    """Return how far predicted times of a GPU's kernels are off, by kind of work.

    An error is the median, in percent, on measurements of this GPU that no fit used; None
    without such measurements.
    """
    by_name = {group.group: group for group in coefficients_of(spec)}
    return {kind: by_name[name].error_percent.get(spec.key) for kind, name in _KINDS.items()}


@functools.cache
def coefficient_groups() -> Mapping[str, Mapping[str, CoefficientGroup]]:
    """Return all groups by name and by what they were fitted to; see `coefficients.toml`."""
    text = resources.files(__package__).joinpath("coefficients.toml").read_text(encoding="utf-8")
    return MappingProxyType(dict(_groups("", tomllib.loads(text))))


def _groups(name: str, table: Mapping[str, Any]) -> dict[str, Mapping[str, CoefficientGroup]]:
    if OTHERWISE in table:
        entries = {of: _group(name, of, entry) for of, entry in table.items()}
        return {name: MappingProxyType(entries)}
    found: dict[str, Mapping[str, CoefficientGroup]] = {}
    for part, inner in table.items():
        found |= _groups(f"{name}.{part}" if name else part, inner)
    return found


def _group(name: str, of: str, entry: Mapping[str, Any]) -> CoefficientGroup:
    values = {
        coefficient: [float(v) for v in value] if isinstance(value, list) else [float(value)]
        for coefficient, value in entry.items()
        if coefficient not in _ABOUT
    }
    errors = MappingProxyType(dict(entry.get("error_percent", {})))
    return CoefficientGroup(name, of, MappingProxyType(values), entry["source"], errors)
