"""`Variation`, what `anyrig fit` varies: a flag of the script, or an environment variable.

::

    --vary --batch-size=1..512    the largest value that fits is found
    --vary --seq-len=512..2048    so it is for each of 512, 1024 and 2048
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import PlanningError
from .fit_value import VARIABLE

_FLAG = re.compile(r"--?[A-Za-z0-9][\w.-]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_RANGE = re.compile(r"(\d{1,12})\.\.(\d{1,12})", re.ASCII)
_EXAMPLES = "write --vary --batch-size=1..512 for a flag of the script, or --vary BATCH=1..512"
_MOST_SHOWN = 60
# Each combination takes two rehearsals and more.
_MOST_COMBINATIONS = 32
# What the name of a number of samples contains.
_SAMPLES = ("batch", "samples", "sequences")


@dataclass(frozen=True)
class Variation:
    """A whole number that the script takes, and the range in which to find the largest.

    Attributes:
        name: a flag such as ``--batch-size``; otherwise the name of an environment variable and of
            an `anyrig.fit_value`.
        first: the smallest value to try.
        last: the largest.

    Raises:
        PlanningError: the range has no value, or begins below 1.
    """

    name: str
    first: int
    last: int

    def __post_init__(self) -> None:
        if self.first > self.last:
            raise PlanningError(
                f"the range {self.first}..{self.last} of {self.name} is reversed; write "
                f"{self.name}={self.last}..{self.first}"
            )
        if self.first < 1:
            raise PlanningError(
                f"the range {self.first}..{self.last} of {self.name} begins below 1; write "
                f"{self.name}=1..{max(self.last, 1)}"
            )

    @classmethod
    def parse(cls, text: str) -> Variation:
        """Return what `text` describes: ``--batch-size=1..512`` or ``BATCH=1..512``.

        Raises:
            PlanningError: the text has another form, or the range is not valid.
        """
        name, equals, values = text.partition("=")
        if not equals or not (_FLAG.fullmatch(name) or _NAME.fullmatch(name)):
            raise PlanningError(f"{_shown(text)} does not name what varies; {_EXAMPLES}")
        match = _RANGE.fullmatch(values)
        if match is None:
            said = f"{_shown(values)} is not a range" if values else "the range is empty"
            raise PlanningError(f"{said} of whole numbers for {_shown(name)}; {_EXAMPLES}")
        return cls(name, int(match[1]), int(match[2]))

    @property
    def is_flag(self) -> bool:
        """Whether a flag of the script varies."""
        return self.name.startswith("-")

    @property
    def is_batch(self) -> bool:
        """Whether the name says that the value is the number of samples of a step."""
        return any(word in self.name.casefold() for word in _SAMPLES)

    @property
    def doublings(self) -> tuple[int, ...]:
        """The values from the first to the last, each twice the one before, and the last."""
        between = []
        value = self.first
        while value < self.last:
            between.append(value)
            value *= 2
        return (*between, self.last)

    def describe(self, value: int) -> str:
        """Return the value as the user gives it: ``--batch-size=8`` or ``BATCH=8``."""
        return f"{self.name}={value}"


@dataclass(frozen=True)
class Setting:
    """One value of a variation."""

    variation: Variation
    value: int

    def __str__(self) -> str:
        return self.variation.describe(self.value)

    @property
    def words(self) -> tuple[str, ...]:
        """The words that give the script this value. They follow its other arguments."""
        name = self.variation.name
        if not self.variation.is_flag:
            return ()
        return (str(self),) if name.startswith("--") else (name, str(self.value))


def read_variations(texts: Sequence[str]) -> tuple[Variation | None, list[tuple[Setting, ...]]]:
    """Return the first variation, and each combination of the values that the others double to.

    Without texts, there is nothing that varies, and one combination, which has no values.

    Raises:
        PlanningError: a text cannot be read, two name the same, or there are too many combinations.
    """
    variations = [Variation.parse(text) for text in texts]
    names = [each.name for each in variations]
    for name in names:
        if names.count(name) > 1:
            raise PlanningError(f"{name} varies twice; give one range for it")
    first, others = next(iter(variations), None), variations[1:]
    values = [[Setting(each, value) for value in each.doublings] for each in others]
    count = math.prod(map(len, values))
    if count > _MOST_COMBINATIONS:
        raise PlanningError(
            f"{', '.join(texts[1:])} are {count} combinations, each value twice the one before, "
            f"and {_MOST_COMBINATIONS} are tried at most; narrow a range"
        )
    return first, [*itertools.product(*values)]


def environment_of(settings: Iterable[Setting]) -> dict[str, str]:
    """Return the environment variables that give a script the values that are no flags."""
    values = {one.variation.name: one.value for one in settings if not one.variation.is_flag}
    if not values:
        return {}
    return {**{name: str(value) for name, value in values.items()}, VARIABLE: json.dumps(values)}


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…")
