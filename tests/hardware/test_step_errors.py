"""The intervals of steps are those of the committed figures, and hold for other programs."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from anyrig import hardware
from anyrig.hardware import Known, StepKind, specs, step_errors, step_errors_of

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
TRAINING = StepKind(Known.STEPS, True, True, True, "RTX-3090")


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script that states the errors. It imports its neighbours by their names."""
    path = BENCHMARKS / "state_step_errors.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec.loader.exec_module(script)
    finally:
        sys.path.remove(str(BENCHMARKS))
    yield script
    for name in [name for name in sys.modules if name.partition(".")[0] == "clock"]:
        del sys.modules[name]


def test_errors_follow_from_the_figures(script: ModuleType) -> None:
    stated = Path(hardware.__file__).with_name("step_errors.toml").read_text(encoding="utf-8")
    residuals = list(script.read_residuals(BENCHMARKS / "results"))
    assert stated == script.text_of(residuals), "run python benchmarks/state_step_errors.py write"


def test_nine_of_ten_programs_lie_in_the_intervals_that_others_give(script: ModuleType) -> None:
    residuals = list(script.read_residuals(BENCHMARKS / "results"))
    assert len(residuals) >= 60
    assert len({one.gpu for one in residuals}) >= 6
    found = script.calibrate(residuals)
    held = [script.holds(errors, one) for errors, one in zip(found, residuals, strict=True)]
    assert 0.85 <= statistics.mean(held) <= 0.97
    assert statistics.median(errors.high - errors.low for errors in found) <= 0.35


def test_every_gpu_is_known() -> None:
    assert hardware.gpus_with_measured_steps() <= set(specs())
    for kind, errors in step_errors().items():
        assert set(errors.gpus) <= set(specs())
        assert kind.gpu in (None, *errors.gpus)
        assert errors.low <= 1 <= errors.high
        assert errors.programs >= 20


def test_the_narrowest_kind_counts() -> None:
    table = {
        kind: hardware.StepErrors(kind, 20, ("RTX-3090",), 0.9 - 0.1 * i, 1.1, apart, 2.0)
        for i, (kind, apart) in enumerate(
            [(replace(TRAINING, gpu=None), None), (StepKind(Known.STEPS), 1.3)]
        )
    }
    narrow = step_errors_of(TRAINING, table)
    assert narrow is not None
    assert (narrow.low, narrow.apart) == (0.9, 1.3)  # only the wider kind knows the latter
    wide = step_errors_of(replace(TRAINING, on_matrix_units=False), table)
    assert wide is not None
    assert wide.low == pytest.approx(0.8)
    assert step_errors_of(replace(TRAINING, known=Known.NOTHING), table) is None


def test_an_interval_is_wider_on_a_gpu_without_programs() -> None:
    kind = replace(TRAINING, gpu=None)
    table = {kind: hardware.StepErrors(kind, 20, ("RTX-3090",), 0.9, 1.1, 1.2, 2.0)}
    found = step_errors_of(replace(TRAINING, gpu="L4"), table)
    assert found is not None
    assert (found.low, found.high, found.apart) == pytest.approx((0.81, 1.21, 1.44))


def test_the_docs_state_the_errors_of_whole_programs(script: ModuleType) -> None:
    text = (ROOT / "docs" / "virtual_inside.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    groups = defaultdict(list)
    for one in script.read_residuals(BENCHMARKS / "results"):
        groups[one.group, one.gpu].append(100 * abs(one.virtual_ms / one.ms - 1))
    for (group, gpu), errors in groups.items():
        figures = statistics.mean(errors), statistics.median(errors), max(errors)
        texts = [f"{round(value, 1):g}" for value in figures]
        assert [group, gpu, str(len(errors)), *texts] in rows
