"""Coefficients of the clock, fitted to measurements by pattern search (Hooke and Jeeves).

    x ── try each value a step up and down ── better? ── x, and again as far in the same direction
                                              no: halve the step

A fraction is fitted as its logit, and any other positive number as its logarithm. The objective is
the mean absolute logarithm of predicted over measured time; beyond `TRUSTED` a row counts a tenth,
because libraries sometimes choose a bad kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyrig.hardware import Spec, spec_of_key
from anyrig.virtual.build import load_extension
from anyrig.virtual.gpu_facts import gpu_facts_of

from .measurements import Overhead, Rows

Coefficients = dict[str, list[float]]

TRUSTED = 0.4
ROWS = 3000  # of each part, at most
STARTS = 3
FIRST_STEP, LAST_STEP = 1.0, 0.03
OVERHEAD = "overhead"  # milliseconds: at the start of the measurements, and the growth
LONGEST_OVERHEAD_MS = 0.8


@dataclass(frozen=True)
class Unknown:
    """A coefficient to fit.

    Attributes:
        name: as in the extension, or `OVERHEAD`, which is no coefficient.
        start: the value to start from.
        index: of a coefficient with several values.
        is_fraction: whether it lies between 0 and 1.
    """

    name: str
    start: float
    index: int = 0
    is_fraction: bool = True

    def encode(self) -> float:
        odds = self.start / (1 - self.start) if self.is_fraction else self.start
        return float(np.log(odds))

    def decode(self, x: float) -> float:
        return float(1 / (1 + np.exp(-x)) if self.is_fraction else np.exp(x))

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest encoded value."""
        return (-4.0, 6.0) if self.is_fraction else (-30.0, 11.0)


def facts(gpu: str) -> tuple[Any, Spec]:
    spec = spec_of_key(gpu)
    return gpu_facts_of(load_extension(), spec), spec


class Part:
    """Rows of one GPU that take part in a fit with a weight."""

    def __init__(self, rows: Rows, weight: float = 1.0, trusted: float = TRUSTED) -> None:
        step = max(1, len(rows.ms) // ROWS)
        chosen = rows.select(lambda i: i % step == 0)
        self.gpu, _ = facts(rows.gpu)
        self.works = load_extension().Works(chosen.columns)
        self.ms = np.asarray(chosen.ms)
        self.overhead, self.progress = chosen.overhead, np.asarray(chosen.progress)
        self.weight, self.trusted = weight, trusted

    def loss(self, coefficients: Coefficients, overhead: Overhead | None) -> float:
        """Return the mean error; `overhead` is that of rows whose overhead is not known."""
        known = self.overhead or overhead
        assert known is not None, "the rows' overhead is to be fitted, and no unknown is for it"
        predicted = self.predict(coefficients) + known.ms_at(self.progress)
        errors = np.abs(np.log(predicted / self.ms))
        return self.weight * float(np.mean(np.minimum(errors, self.trusted) + 0.1 * errors))

    def predict(self, coefficients: Coefficients) -> Any:
        self.gpu.coefficients = coefficients
        return 1e3 * np.asarray(load_extension().predict_seconds(self.gpu, self.works))


def fit(
    base: Coefficients, unknowns: Sequence[Unknown], parts: Sequence[Part]
) -> tuple[Coefficients, Overhead | None]:
    """Return `base` with the fitted values, and the fitted overhead, if asked."""

    def loss(values: Coefficients, overhead: Overhead | None) -> float:
        return sum(part.loss(values, overhead) for part in parts)

    return fit_loss(base, unknowns, loss)


def fit_loss(
    base: Coefficients,
    unknowns: Sequence[Unknown],
    loss: Callable[[Coefficients, Overhead | None], float],
    pull: float = 0.0,
    starts: int = STARTS,
) -> tuple[Coefficients, Overhead | None]:
    """Minimise `loss`, from `starts` places.

    `pull` holds the values near their start where few rows determine them.
    """

    def decode(x: Any) -> tuple[Coefficients, Overhead | None]:
        values = {name: list(of) for name, of in base.items()}
        overhead = []
        for unknown, encoded in zip(unknowns, x, strict=True):
            if unknown.name == OVERHEAD:
                overhead.append(min(unknown.decode(encoded), LONGEST_OVERHEAD_MS))
            else:
                values[unknown.name][unknown.index] = unknown.decode(encoded)
        return values, Overhead(*overhead) if overhead else None

    start = np.array([unknown.encode() for unknown in unknowns])
    low, high = np.array([unknown.bounds for unknown in unknowns]).T

    def objective(x: Any) -> float:
        value = loss(*decode(x)) + pull * float(np.mean((x - start) ** 2))
        return value if np.isfinite(value) else 1e3

    generator = np.random.default_rng(0)
    best, least = _descend(objective, start, low, high)
    for _ in range(starts - 1):
        moved = np.clip(best + generator.normal(0, 0.4, len(start)), low, high)
        found, value = _descend(objective, moved, low, high)
        if value < least:
            best, least = found, value
    return decode(best)


def _descend(objective: Callable[[Any], float], x: Any, low: Any, high: Any) -> tuple[Any, float]:
    """Return the minimum near `x` between `low` and `high`, and its value."""
    least, step = objective(x), FIRST_STEP
    while step > LAST_STEP:
        moved, value = _explore(objective, x, least, step, low, high)
        if value >= least:
            step /= 2
            continue
        # Beyond the bounds the objective would be flat, and no step would lead back.
        further = np.clip(2 * moved - x, low, high)
        x, least = moved, value
        moved, value = _explore(objective, further, objective(further), step, low, high)
        if value < least:
            x, least = moved, value
    return x, least


def _explore(
    objective: Callable[[Any], float], x: Any, least: float, step: float, low: Any, high: Any
) -> tuple[Any, float]:
    """Move each value in turn by a step up or down, where that is better."""
    for i in range(len(x)):
        for change in (step, -step):
            moved = x.copy()
            moved[i] = np.clip(moved[i] + change, low[i], high[i])
            if moved[i] == x[i]:
                continue
            value = objective(moved)
            if value < least:
                x, least = moved, value
                break
    return x, least
