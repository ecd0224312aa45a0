from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from anyrig.hardware import (
    coefficient_groups,
    coefficients_of,
    known_errors,
    spec_of_key,
    specs,
    values_of,
)

DOCS = Path(__file__).parents[2] / "docs" / "virtual_inside.md"


def test_every_gpu_has_the_same_coefficients_each_with_a_source() -> None:
    names = set(values_of(coefficients_of(spec_of_key("A100-80GB"))))
    for spec in specs().values():
        groups = coefficients_of(spec)
        assert set(values_of(groups)) == names
        for group in groups:
            assert group.of in (spec.key, *spec.relatives, spec.architecture, "otherwise")
            assert group.source


def test_the_nearest_table_applies() -> None:
    memory = coefficient_groups()["memory"]
    for key, architecture in (("T4", "turing"), ("L4", "ada")):
        group = next(g for g in coefficients_of(spec_of_key(key)) if g.group == "memory")
        nearest = next(of for of in (key, architecture, "otherwise") if of in memory)
        assert group is memory[nearest]


def tables_of(**changed: object) -> dict[str, str]:
    gpu = replace(spec_of_key("T4"), **changed)  # type: ignore[arg-type]
    return {group.group: group.of for group in coefficients_of(gpu)}


def test_a_gpus_own_table_comes_before_its_architectures() -> None:
    assert tables_of(key="RTX-3090")["memory"] == "RTX-3090"
    assert tables_of(key="T5")["memory"] == "turing"


def test_a_relatives_table_comes_before_the_architectures() -> None:
    found = tables_of(key="T5", relatives=("L40S", "RTX-3090"))
    assert (found["attention"], found["memory"]) == ("L40S", "RTX-3090")
    assert tables_of(key="T5", relatives=("A100-40GB",))["memory"] == "turing"


def test_relatives_are_known_gpus() -> None:
    for spec in specs().values():
        assert set(spec.relatives) <= set(specs()) - {spec.key}


def test_tables_are_of_known_gpus_or_architectures() -> None:
    # Pascal is measured, though no rig has such a GPU: PyTorch no longer supports it.
    known = {"otherwise", "pascal", *specs(), *(s.architecture for s in specs().values())}
    for group in coefficient_groups().values():
        assert set(group) <= known


def test_values_are_numbers_that_a_time_can_be_made_of() -> None:
    for spec in specs().values():
        for name, values in values_of(coefficients_of(spec)).items():
            assert all(0 <= value < 1e6 for value in values), (spec.key, name, values)
            if name.startswith("memory.") and name.endswith("fraction"):
                assert all(0 < value <= 1 for value in values), (spec.key, name, values)


def test_errors_are_those_of_the_gpu_that_was_measured() -> None:
    for table in coefficient_groups().values():
        for group in table.values():
            assert set(group.error_percent) <= set(specs())
            assert all(0 < error < 100 for error in group.error_percent.values())
    measured = spec_of_key("A100-80GB")
    assert known_errors(measured)["products"] is not None
    unmeasured = replace(measured, key="A100-of-tomorrow")
    assert set(known_errors(unmeasured).values()) == {None}


def test_what_is_known_cannot_be_changed() -> None:
    groups = coefficient_groups()
    with pytest.raises(TypeError):
        groups["memory"] = {}  # type: ignore[index]
    with pytest.raises(TypeError):
        groups["memory"]["otherwise"].values["fraction"] = [1.0]  # type: ignore[index]


def test_the_docs_state_which_groups_are_transposed() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for group in coefficient_groups()["convolution.tensor"].values():
        low, middle, wide = group.values["grouped_transpose_widths"]
        fewest, few = group.values["grouped_transpose_channels"]
        stated = (
            f"float16 or bfloat16: {wide:g} or more; {middle:g} or more, if all groups together "
            f"have fewer than {few:g}; {low:g} or more, if all groups together have fewer than "
            f"{fewest:g} |"
        )
        assert stated in text, group.of


def test_the_docs_state_every_known_error() -> None:
    text = DOCS.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    for spec in specs().values():
        errors = known_errors(spec)
        if any(error is not None for error in errors.values()):
            cells = ["unknown" if e is None else f"{e:g}" for e in errors.values()]
            stated = [row for row in rows if spec.key in row.split("|")[1].replace(",", "").split()]
            assert any(f"| {' | '.join(cells)} |" in row for row in stated), spec.key
