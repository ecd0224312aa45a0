"""The known errors of whole programs are those of the committed figures."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from anyrig import hardware
from anyrig.hardware import program_errors, specs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_errors_follow_from_the_figures() -> None:
    path = BENCHMARKS / "state_program_errors.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    stated = Path(hardware.__file__).with_name("program_errors.toml").read_text(encoding="utf-8")
    assert stated == script.HEAD + script.tables(BENCHMARKS / "results"), (
        "run python benchmarks/state_program_errors.py write"
    )


def test_every_program_ran_on_a_known_gpu() -> None:
    found = [errors for spec in specs().values() for errors in program_errors(spec)]
    text = Path(hardware.__file__).with_name("program_errors.toml").read_text(encoding="utf-8")
    assert len(found) == text.count("[[programs]]") > 0


def test_the_docs_state_the_errors_of_whole_programs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "virtual_inside.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    for spec in specs().values():
        for errors in program_errors(spec):
            figures = [f"{value:g}" for value in (errors.mean, errors.median, errors.largest)]
            assert [errors.kind, errors.gpu, str(errors.programs), *figures] in rows
