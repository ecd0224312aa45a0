"""The difference of two checkpoints: names, shapes, and how far elements differ."""

from __future__ import annotations

import math

import pytest
import torch

from anyrig.checkpoint.compare import compare, compare_tensors

NAN, INF = math.nan, math.inf


def test_names_shapes_and_values_that_differ_are_listed() -> None:
    first = {"a": torch.ones(3), "b": torch.ones(2), "c": torch.zeros(1), "d": torch.ones(4)}
    second = {
        "b": torch.ones(2, 1),
        "c": torch.zeros(1),
        "d": torch.tensor([1.0, 1, 1.5, 0]),
        "e": first["a"],
    }
    found = compare(first, second)
    assert found.only_in_first == ("a",)
    assert found.only_in_second == ("e",)
    assert found.other_shapes == {"b": ((2,), (2, 1))}
    assert found.equal == 1
    (difference,) = found.differences
    assert difference.name == "d"
    assert (difference.largest_absolute, difference.largest_relative) == (1.0, 1.0)
    assert (difference.different_elements, difference.elements) == (2, 4)
    assert not found.is_equal
    assert compare(first, dict(first)).is_equal


@pytest.mark.parametrize(
    ("one", "other", "absolute", "relative", "count"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5, 0.2, 1),
        ([NAN, INF, -INF], [NAN, INF, -INF], 0, 0, 0),
        ([NAN, 1.0], [1.0, 1.0], INF, INF, 1),
        ([INF], [-INF], INF, INF, 1),
        ([0.0], [-0.0], 0, 0, 0),
        ([], [], 0, 0, 0),
        ([2**53, 5], [2**53 + 1, 5], 0, 0, 1),
        ([True, False], [True, True], 1, 1, 1),
        ([1 + 1j], [1 - 1j], 2, math.sqrt(2), 1),
    ],
)
def test_elements(one: list, other: list, absolute: float, relative: float, count: int) -> None:
    found = compare_tensors("a", torch.tensor(one), torch.tensor(other))
    assert found.different_elements == count
    assert found.largest_absolute == pytest.approx(absolute)
    assert found.largest_relative == pytest.approx(relative)


def test_another_type_is_a_difference_even_with_equal_values() -> None:
    first = {"a": torch.ones(2), "b": torch.ones(2).to(torch.float8_e4m3fn)}
    second = {"a": torch.ones(2, dtype=torch.bfloat16), "b": first["b"].clone()}
    (difference,) = compare(first, second).differences
    assert difference.dtypes == ("float32", "bfloat16")
    assert difference.different_elements == 0


def test_the_largest_difference_is_first() -> None:
    steps = {"b": 1.0, "a": 1.0, "c": math.inf, "d": 5.0, "same": 0.0}
    first = {name: torch.zeros(2) for name in steps}
    second = {name: torch.full((2,), step) for name, step in steps.items()}
    found = compare(first, second)
    assert [each.name for each in found.differences] == ["c", "d", "a", "b"]
    assert found.equal == 1


@pytest.mark.parametrize("kept", ["only_in_first", "only_in_second", "other_shapes", "differences"])
def test_each_kind_of_difference_counts(kept: str) -> None:
    first, second = {"a": torch.ones(2)}, {"a": torch.ones(2)}
    if kept == "only_in_first":
        first["b"] = torch.ones(1)
    elif kept == "only_in_second":
        second["b"] = torch.ones(1)
    else:
        second["a"] = torch.ones(3) if kept == "other_shapes" else torch.zeros(2)
    assert not compare(first, second).is_equal


def test_the_last_of_many_pieces_is_compared() -> None:
    first = torch.zeros((1 << 20) + 3)
    second = first.clone()
    second[-1] = 2
    assert compare_tensors("a", first, second).largest_absolute == 2


def test_sparse_and_quantized_tensors_are_compared_by_their_values() -> None:
    dense = torch.eye(3)
    assert compare_tensors("a", dense.to_sparse(), dense).different_elements == 0
    assert compare_tensors("a", dense, 3 * dense.to_sparse()).largest_absolute == 2
