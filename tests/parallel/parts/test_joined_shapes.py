"""What the shapes of parts, and of one more sample, say of how parts are joined."""

from __future__ import annotations

from typing import Any

import pytest

from anyrig.parallel.parts.divided_dimension import Answer, read_change, read_shapes

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN"),
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
    pytest.mark.usefixtures("double_precision"),
]


A = Answer
TABLE: list[tuple[list[tuple[int, ...]], list[int], int, Answer]] = [
    ([(3, 7), (2, 7)], [3, 2], 0, A(0)),
    ([(1, 3, 7), (1, 2, 7)], [3, 2], 0, A(1)),
    ([(7, 3), (7, 2)], [3, 2], -2, A(1)),
    ([(3,), (2,)], [3, 2], 1, A(0)),
    ([(3, 7), (3, 7)], [3, 3], 0, A(0)),
    ([(3, 3), (3, 3)], [3, 3], 0, A(candidates=(0, 1))),
    ([(1, 3, 7), (1, 3, 7)], [3, 3], 0, A(candidates=(0, 1))),
    ([(6, 7), (6, 7)], [3, 3], 0, A(candidates=(0,))),
    ([(1,), (1,)], [1, 1], 0, A(candidates=(0,))),
    ([(1,), (1,)], [3, 2], 0, A()),
    ([(1, 1), (1, 1)], [3, 3], 0, A()),
    ([(9, 7), (5, 7)], [3, 2], 0, A(0)),
    ([(9, 3), (5, 3)], [3, 3], 0, A(candidates=(0, 1), differing=(0,))),
    ([(0, 7), (0, 7)], [3, 2], 0, A(0)),
    ([(5, 7), (5, 7)], [3, 2], 0, A(candidates=(0,))),
    ([(3, 9), (3, 5)], [3, 3], 0, A(differing=(1,))),
    ([(3, 9), (2, 5)], [3, 2], 0, A(differing=(1,))),
    ([(3, 3), (2, 2)], [3, 2], 0, A(differing=(1,))),
    ([(9, 3), (5, 2)], [3, 2], 0, A(differing=(1,))),
    ([(7,), (7,)], [3, 2], 1, A()),
]


@pytest.mark.parametrize(("shapes", "samples", "dim", "expected"), TABLE)
def test_what_shapes_say(shapes: Any, samples: Any, dim: int, expected: Answer) -> None:
    assert read_shapes(shapes, samples, dim) == expected


@pytest.mark.parametrize(
    ("first", "probed", "expected"),
    [
        ((3, 3), (4, 3), A(0)),
        ((3, 3), (3, 4), A(1)),
        ((3, 3), (4, 4), A(candidates=(0, 1))),
        ((3, 3), (3, 3), A()),
        ((3, 3), (7, 3), A(0)),  # any number along the divided dimension
        ((3, 3), (3, 7), A()),
    ],
)
def test_what_one_more_sample_says(first: Any, probed: Any, expected: Answer) -> None:
    assert read_change(A(candidates=(0, 1)), first, 3, probed, 0) == expected


def test_parts_that_differ_where_one_more_sample_changes_nothing() -> None:
    unclear = A(candidates=(0, 1), differing=(0,))
    assert read_change(unclear, (9, 3), 3, (9, 3), 0) == A(0)
    assert read_change(unclear, (9, 3), 3, (9, 4), 0) == A(1)
