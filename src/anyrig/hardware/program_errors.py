"""How far the virtual times of whole programs are known to be off."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from importlib import resources

from .spec import Spec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class ProgramErrors:
    """The errors of the predicted times of whole programs of one kind on one GPU, in percent.

    Attributes:
        gpu: the key of the GPU.
        kind: what the programs are.
        programs: how many were compared. No fit has seen any of them.
        mean: the mean error.
        median: the median error.
        largest: the largest error.
        source: who measured them.
    """

    gpu: str
    kind: str
    programs: int
    mean: float
    median: float
    largest: float
    source: str


def program_errors(spec: Spec) -> tuple[ProgramErrors, ...]:
    """Return the known errors of whole programs on a GPU, one entry per kind of program."""
    return tuple(errors for errors in _all_errors() if errors.gpu == spec.key)


@functools.cache
def _all_errors() -> tuple[ProgramErrors, ...]:
    text = resources.files(__package__).joinpath("program_errors.toml").read_text(encoding="utf-8")
    return tuple(ProgramErrors(**table) for table in tomllib.loads(text)["programs"])
