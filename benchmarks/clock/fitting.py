"""Coefficients of the clock, fitted to measurements by Powell's method.

A fraction is fitted as its logit, and any other positive number as its logarithm. The objective is
the mean absolute logarithm of predicted over measured time; beyond `TRUSTED` a row counts a tenth,
because libraries sometimes choose a bad kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from anyrig.hardware import Spec, spec_of_key
from anyrig.virtual.build import load_extension
from anyrig.virtual.gpu_facts import gpu_facts_of

from .measurements import Rows

Coefficients = dict[str, list[float]]

TRUSTED = 0.4
ROWS = 3000  # of each part, at most
RESTARTS = 2
OVERHEAD = "overhead"  # milliseconds of each row; not a coefficient
LONGEST_OVERHEAD_MS = 0.15


@dataclass(frozen=True)
class Unknown:
    """A coefficient to fit.

    Attributes:
        name: as in the extension, or `OVERHEAD`.
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
        if self.is_fraction:
            return float(1 / (1 + np.exp(-np.clip(x, -4, 6))))
        return float(np.exp(np.clip(x, -30, 8.5)))


def facts(gpu: str) -> tuple[Any, Spec]:
    spec = spec_of_key(gpu)
    return gpu_facts_of(load_extension(), spec), spec


class Part:
    """Rows of one GPU that take part in a fit with a weight."""

    def __init__(self, rows: Rows, weight: float = 1.0) -> None:
        step = max(1, len(rows.ms) // ROWS)
        chosen = rows.select(lambda i: i % step == 0)
        self.gpu, _ = facts(rows.gpu)
        self.works = load_extension().Works(chosen.columns)
        self.ms = np.asarray(chosen.ms)
        self.overhead_ms = chosen.overhead_ms
        self.weight = weight

    def loss(self, coefficients: Coefficients, overhead_ms: float | None) -> float:
        predicted = self.predict(coefficients)
        predicted += self.overhead_ms if overhead_ms is None else overhead_ms
        errors = np.abs(np.log(predicted / self.ms))
        return self.weight * float(np.mean(np.minimum(errors, TRUSTED) + 0.1 * errors))

    def predict(self, coefficients: Coefficients) -> Any:
        self.gpu.coefficients = coefficients
        return 1e3 * np.asarray(load_extension().predict_seconds(self.gpu, self.works))


def fit(
    base: Coefficients, unknowns: Sequence[Unknown], parts: Sequence[Part]
) -> tuple[Coefficients, float | None]:
    """Return `base` with the fitted values, and the fitted overhead in milliseconds, if asked."""

    def loss(values: Coefficients, overhead_ms: float | None) -> float:
        return sum(part.loss(values, overhead_ms) for part in parts)

    return fit_loss(base, unknowns, loss)


def fit_loss(
    base: Coefficients,
    unknowns: Sequence[Unknown],
    loss: Callable[[Coefficients, float | None], float],
    pull: float = 0.0,
) -> tuple[Coefficients, float | None]:
    """Minimise `loss`. `pull` holds the values near their start where few rows determine them."""

    def decode(x: Any) -> tuple[Coefficients, float | None]:
        values = {name: list(of) for name, of in base.items()}
        overhead = None
        for unknown, encoded in zip(unknowns, x, strict=True):
            if unknown.name == OVERHEAD:
                overhead = min(unknown.decode(encoded), LONGEST_OVERHEAD_MS)
            else:
                values[unknown.name][unknown.index] = unknown.decode(encoded)
        return values, overhead

    start = np.array([unknown.encode() for unknown in unknowns])

    def objective(x: Any) -> float:
        value = loss(*decode(x)) + pull * float(np.mean((x - start) ** 2))
        return value if np.isfinite(value) else 1e3

    generator = np.random.default_rng(0)
    best = None
    for restart in range(RESTARTS):
        x = start if restart == 0 else best.x + generator.normal(0, 0.4, len(start))
        for _ in range(3):
            found = minimize(
                objective, x, method="Powell", options={"maxiter": 4, "xtol": 2e-2, "ftol": 5e-4}
            )
            x = found.x
        if best is None or found.fun < best.fun:
            best = found
    return decode(_polish(objective, best.x))


def _polish(objective: Callable[[Any], float], x: Any) -> Any:
    """Move one value at a time, since Powell's line searches leap over narrow valleys."""
    least = objective(x)
    for _ in range(3):
        for i in range(len(x)):
            for step in (-2, -1, -0.5, -0.25, 0.25, 0.5, 1, 2):
                moved = x.copy()
                moved[i] += step
                value = objective(moved)
                if value < least:
                    least, x = value, moved
    return x
