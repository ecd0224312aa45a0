"""Predictions of whole programs from their work records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anyrig.hardware import StepKind, spec_of_key
from anyrig.rehearsal.step_kind import kind_of_step
from anyrig.virtual.build import load_extension

from .fitting import TRUSTED, Coefficients, facts


class Programs:
    """Programs on one GPU: each a list of distinct work records with their counts."""

    def __init__(self, steps: Sequence[dict[str, Any]], gpu: str) -> None:
        self.steps, self.gpu_key = steps, gpu
        self.gpu, _ = facts(gpu)
        self.ms = np.array([step["ms"] for step in steps])
        columns: dict[str, list[float]] = {name: [] for name in steps[0]["columns"]}
        for step in steps:
            for name, column in step["columns"].items():
                columns[name] += column
        counts = [count for step in steps for count in step["counts"]]
        sizes = [len(step["counts"]) for step in steps]
        self._program = np.repeat(np.arange(len(steps)), sizes)
        # Programs share many records: predict each once.
        table = np.array(list(columns.values())).T
        distinct, self._record = np.unique(table, axis=0, return_inverse=True)
        self._record = self._record.ravel()
        self._counts = np.array(counts, dtype=float)
        self._works = load_extension().Works(
            {name: distinct[:, i].tolist() for i, name in enumerate(columns)}
        )

    def select(self, keep: Callable[[str], bool]) -> Programs:
        return Programs([step for step in self.steps if keep(step["model"])], self.gpu_key)

    def predict(self, coefficients: Coefficients | None = None) -> Any:
        """Return the milliseconds of each step; without coefficients, by the installed ones."""
        if coefficients is not None:
            self.gpu.coefficients = coefficients
        each = 1e3 * np.asarray(load_extension().predict_seconds(self.gpu, self._works))
        spent = each[self._record] * self._counts
        return np.bincount(self._program, weights=spent, minlength=len(self.steps))

    def kinds(self) -> list[StepKind]:
        """Return the kind of each step."""
        each = np.asarray(load_extension().predict_seconds(self.gpu, self._works))
        seconds = each[self._record] * self._counts
        spec, found = spec_of_key(self.gpu_key), []
        for i, step in enumerate(self.steps):
            columns = {**step["columns"], "seconds": seconds[self._program == i].tolist()}
            kind = kind_of_step(columns, spec)
            assert kind is not None
            found.append(kind)
        return found

    def loss(self, coefficients: Coefficients) -> float:
        errors = np.abs(np.log(self.predict(coefficients) / self.ms))
        return float(np.mean(np.minimum(errors, TRUSTED) + 0.2 * errors))
