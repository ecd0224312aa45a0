"""The public cases by which `benchmarks/judge_fit.py` judges `anyrig fit`, and its figures."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from anyrig.virtual.rig import VirtualRig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CASES = tomllib.loads((BENCHMARKS / "workloads" / "public_memory_cases.toml").read_text())["case"]
COUNTED = [case for case in CASES if not case.get("undetermined")]
ROWS = json.loads((BENCHMARKS / "results" / "fit-cases.json").read_text())["rows"]


def named(case: dict[str, Any]) -> str:
    return f"{case['name']} on {case['rig']}"


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_case_has_a_source_a_date_and_a_gpu_that_anyrig_knows(case: dict[str, Any]) -> None:
    assert case["source"]
    assert case["date"][:2] == "20"
    assert len(VirtualRig.parse(case["rig"]).devices) == 1


def test_there_are_enough_cases_of_both_kinds() -> None:
    assert len(COUNTED) >= 25
    assert sum(not case["ran"] for case in COUNTED) >= 8
    assert len({named(case) for case in CASES}) == len(CASES)


def test_the_figures_are_of_these_cases() -> None:
    cases = [{"undetermined": "", **case} for case in CASES]
    assert [{name: row[name] for name in cases[0]} for row in ROWS] == cases


def test_no_case_that_ran_out_of_memory_is_called_certain() -> None:
    failed = [row for row in ROWS if not row["ran"] and not row["undetermined"]]
    assert [named(row) for row in failed if row["verdict"] == "certain"] == []


def test_nearly_all_that_ran_are_called_certain_or_likely() -> None:
    ran = [row for row in ROWS if row["ran"] and not row["undetermined"]]
    fitting = [row for row in ran if row["verdict"] in ("certain", "likely")]
    assert len(fitting) >= 0.9 * len(ran)


def test_the_page_is_of_these_figures() -> None:
    path = BENCHMARKS / "workloads" / "public_memory_page.py"
    spec = importlib.util.spec_from_file_location("public_memory_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(ROWS)
