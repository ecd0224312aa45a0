"""Arguments that list samples, and those that only look like it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyrig.parallel.group.samples import count_samples, put_samples, take_samples

IMAGE, TARGET = torch.ones(3, 4, 5), {"boxes": torch.ones(2, 4)}


@pytest.mark.parametrize(
    ("inputs", "kwargs", "samples"),
    [
        (([IMAGE, IMAGE], [TARGET, TARGET]), {}, 2),
        (([TARGET],), {"extra": torch.ones(7)}, 1),
        (([IMAGE] * 4,), {"targets": (TARGET,) * 4}, 4),
        (((), ()), {}, 0),
        (([],), {}, 0),
        (([IMAGE, IMAGE],), {}, None),  # may be two features of three rows
        ((torch.ones(3), []), {}, None),
        (({"x": torch.ones(3)},), {"skip": []}, None),
        ((), {}, None),
    ],
)
def test_what_counts(inputs: Any, kwargs: Any, samples: int | None) -> None:
    assert count_samples((inputs, kwargs)) == samples


def test_a_sample_stands_in() -> None:
    arguments = (([IMAGE, IMAGE], (TARGET, TARGET)), {"names": ["a", "b"], "sizes": [1, 2, 3]})
    one = take_samples(arguments, 2, 1)
    assert one == (([IMAGE], (TARGET,)), {"names": ["a"], "sizes": [1, 2, 3]})
    none = take_samples(arguments, 2, 0)
    assert none == (([], ()), {"names": [], "sizes": [1, 2, 3]})
    stand_in = put_samples((([], ()), {}), one, 2)
    assert stand_in == (([IMAGE, IMAGE], (TARGET, TARGET)), {})
