"""`make judge` fails where a mean error got worse by two points."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = BENCHMARKS / "clock" / "mean_errors.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def test_errors_are_means_by_gpu_and_kind(script: ModuleType) -> None:
    ratios = [("T4", "steps", 1.1), ("T4", "steps", 0.7), ("L4", "steps", 1.02)]
    found = [(e.gpu, e.kind, e.compared, e.mean) for e in script.mean_errors(ratios)]
    assert found == [("L4", "steps", 1, 2.0), ("T4", "steps", 2, 20.0)]


def test_two_points_are_worse_and_what_is_not_known_is_reported(script: ModuleType) -> None:
    known = [script.MeanError("T4", "steps", 9, 5.0)]

    def lines(gpu: str, mean: float) -> list[str]:
        found: list[str] = script.lines_of_worse([script.MeanError(gpu, "steps", 9, mean)], known)
        return found

    assert lines("T4", 6.9) == []
    assert lines("T4", 7.0) == ["T4, steps: mean error 7.0 %, was 5.0 %"]
    assert lines("L4", 1.0) == ["L4, steps: mean error 1.0 %, not known before"]


def test_the_committed_errors_can_be_read(script: ModuleType) -> None:
    rows = json.loads((BENCHMARKS / "results" / "judge.json").read_text(encoding="utf-8"))["rows"]
    known = [script.MeanError(**row) for row in rows]
    assert script.lines_of_worse(known, known) == []
    assert {"RTX-4090", "RTX-3090", "H100-SXM"} <= {error.gpu for error in known}
