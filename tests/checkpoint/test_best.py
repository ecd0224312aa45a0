"""Which checkpoint of a series is the best, and which stay."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

import anyrig
from anyrig.checkpoint import Series
from anyrig.checkpoint.describe import SeriesDescription, describe

INFINITE = math.inf


def save_all(
    folder: Path,
    metrics: Sequence[float | None],
    best: str | Sequence[str],
    keep: int | None = None,
) -> None:
    for step, metric in enumerate(metrics):
        word = best if isinstance(best, str) else best[step]
        given = {} if metric is None else {"metric": metric, "best": word}
        anyrig.save(folder, step=step, keep=keep, **given)


BEST = {
    "a tie of two": ([0.5, 0.9, 0.9, 0.1], "max", 2),
    "a tie with the newest": ([0.9, 0.1, 0.9], "max", 2),
    "all alike": ([0.5, 0.5, 0.5], "max", 2),
    "a tie of the lowest": ([0.1, 0.5, 0.1, 0.5], "min", 2),
    "zeros of both signs": ([0.0, -0.0, -1.0], "max", 1),
    "infinities": ([INFINITE, 1.0, INFINITE, -INFINITE], "max", 2),
    "minus infinities": ([-INFINITE, 1.0, -INFINITE, INFINITE], "min", 2),
    "without a metric at the end": ([0.9, 0.9, None], "max", 1),
    "the newest decides the direction": ([0.1, 0.9, 0.5], ["max", "max", "min"], 0),
    "the newest with a metric decides": ([0.9, 0.1, None], ["min", "max", ""], 0),
}


@pytest.mark.parametrize("kind", BEST)
def test_of_equal_metrics_the_newest_is_the_best(kind: str, tmp_path: Path) -> None:
    metrics, best, expected = BEST[kind]
    save_all(tmp_path / "a", metrics, best)
    assert anyrig.load(tmp_path / "a", which="best").step == expected
    found = Series(tmp_path / "a").best()
    assert found is not None
    assert found.manifest.step == expected
    shown = describe(tmp_path / "a")
    assert isinstance(shown, SeriesDescription)
    assert shown.best == found.path.name
    assert shown.latest == f"{len(metrics):06d}-step-{len(metrics) - 1}"


# Where the direction changes, what was the best before is removed before.
@pytest.mark.parametrize("kind", [kind for kind in BEST if isinstance(BEST[kind][1], str)])
def test_the_best_stays_when_older_ones_are_removed(kind: str, tmp_path: Path) -> None:
    metrics, best, expected = BEST[kind]
    save_all(tmp_path / "a", metrics, best, keep=1)
    steps = {each.manifest.step for each in Series(tmp_path / "a").checkpoints()}
    assert steps == {expected, len(metrics) - 1}


def test_a_damaged_best_one_is_followed_by_the_next_best(tmp_path: Path) -> None:
    save_all(tmp_path / "a", [0.7, 0.9, 0.7, 0.9, 0.1], "max")
    for step, following in ((3, 1), (1, 2), (2, 0)):
        (path,) = (tmp_path / "a").glob(f"*-step-{step}")
        (path / "values.pt").write_bytes(b"")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert anyrig.load(tmp_path / "a", which="best").step == following
        assert any(f"step-{step}" in str(each.message) for each in told)
