"""A batch is divided along dimension 0 of its tensors, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyrig.memory.batch_parts import Batch, divide_evenly

X = torch.arange(8.0).reshape(4, 2)


@pytest.mark.parametrize(
    ("value", "is_refused"),
    [
        (["a"] * 4, True),
        ([1, 2, 3, 4], True),
        ({"names": (["a"] * 4,)}, True),
        (["a"] * 3, False),
        (["a"] * 5, False),
        (("a",) * 4, False),
        ([X] * 4, False),
        ([X, 1, 2, 3], False),
    ],
)
def test_a_list_with_an_entry_for_each_sample_is_refused(value: Any, is_refused: bool) -> None:
    refusal = Batch((X, value), {}).refusal()
    assert (refusal is not None) is is_refused
    assert refusal is None or "may have one entry for each sample" in refusal


def test_of_one_sample_no_list_is_refused() -> None:
    assert Batch((X[:1], ["a"]), {}).refusal() is None


def test_a_part_has_its_samples_of_all_tensors_and_the_rest_whole() -> None:
    scale = torch.tensor(2.0)
    batch = Batch(([X, (X + 1,)], scale, "mean"), {"mask": {"of": X > 3}, "count": 4})
    assert batch.samples == 4
    (nested, found_scale, word), kwargs = batch.part(1, 2)
    assert torch.equal(nested[0], X[1:3])
    assert torch.equal(nested[1][0], X[1:3] + 1)
    assert nested[0].data_ptr() == X[1:].data_ptr()  # a view
    assert found_scale is scale
    assert word == "mean"
    assert torch.equal(kwargs["mask"]["of"], X[1:3] > 3)
    assert kwargs["count"] == 4


def test_sizes_differ_by_at_most_one_and_the_larger_parts_come_first() -> None:
    assert divide_evenly(7, 3) == [(0, 3), (3, 2), (5, 2)]
    assert divide_evenly(6, 3) == [(0, 2), (2, 2), (4, 2)]
    assert divide_evenly(2, 3) == [(0, 1), (1, 1), (2, 0)]
