"""Arguments that list samples, and arguments that only look like lists of samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyrig.errors import BatchError, SpreadError
from anyrig.parallel.parts.samples import count_arguments, count_listed
from anyrig.parallel.ranks.given_batches import GivenBatches
from anyrig.parallel.ranks.without_samples import compute_without_samples, first_samples

IMAGE, TARGET = torch.ones(3, 4, 5), {"boxes": torch.ones(2, 4)}


@pytest.mark.parametrize(
    ("inputs", "kwargs", "samples"),
    [
        (([IMAGE, IMAGE], [TARGET, TARGET]), {}, 2),
        (([TARGET],), {"extra": torch.ones(7)}, 1),
        (([IMAGE] * 4,), {"targets": (TARGET,) * 4}, 4),
        (((), ()), {}, 0),
        (([],), {}, 0),
        (([IMAGE, IMAGE],), {}, None),  # may be two features of three samples
        ((torch.ones(3), []), {}, None),
        (({"x": torch.ones(3)},), {"skip": []}, None),
        ((), {}, None),
    ],
)
def test_what_counts(inputs: Any, kwargs: Any, samples: int | None) -> None:
    assert count_listed(inputs, kwargs) == samples


def test_empty_lists_have_no_samples() -> None:
    assert count_arguments(([], ()), {}, 0) == 0
    assert count_arguments(([], torch.tensor(1.0)), {}, 0) == 0
    assert count_arguments((), {"scale": 2.0}, 0) is None


def test_an_object_whose_samples_nothing_counts_is_refused() -> None:
    class Fields:
        def __init__(self) -> None:
            self.x = torch.ones(3, 2)

    with pytest.raises(BatchError, match=r"argument 0 is a Fields with a tensor of shape \(3, 2\)"):
        count_arguments((Fields(),), {}, 0)


def test_parts_of_two_batches_of_a_loader_show_no_number() -> None:
    given, batches = GivenBatches(), [[torch.ones(3), torch.ones(3)], [torch.ones(2)]]
    for batch in batches:
        given.note(batch, len(batch[0]))
    assert given.count((batches[0][1], {"target": batches[0][0]})) == 3
    assert given.count((batches[0][0], {"target": batches[1][0]})) is None
    assert given.count((torch.ones(3), {})) is None


def test_a_sample_stands_in() -> None:
    arguments = (([IMAGE, IMAGE], (TARGET, TARGET)), {"names": ["a", "b"], "sizes": [1, 2, 3]})
    one = first_samples(arguments, 1, 0)
    (images, targets), others = one
    assert torch.equal(images[0], IMAGE)
    assert images[0] is not IMAGE
    assert torch.equal(targets[0]["boxes"], TARGET["boxes"])
    assert (len(images), len(targets)) == (1, 1)
    assert others == {"names": ["a"], "sizes": [1, 2, 3]}
    none = first_samples(arguments, 0, 0)
    assert none == (([], ()), {"names": [], "sizes": [1, 2, 3]})
    seen: list[Any] = []

    def compute(*inputs: Any, **kwargs: Any) -> list[Any]:
        seen.append((inputs, kwargs))
        return [TARGET, TARGET]

    assert compute_without_samples(torch.nn.Identity(), compute, (([], ()), {}), one, 0) == []
    assert seen == [(([images[0]] * 2, (targets[0],) * 2), {})]
    with pytest.raises(
        SpreadError, match="has no samples, and its arguments do not show what a sample is"
    ):
        compute_without_samples(torch.nn.Identity(), compute, (([], ()), {}), None, 0)


@pytest.mark.parametrize("like", [None, torch.full((1, 3), 7.0)])
def test_rows_stand_in_that_every_layer_takes(like: torch.Tensor | None) -> None:
    """Stand-ins are ones, which are valid indices and lengths, and False; or an earlier sample."""
    given = (torch.ones(0, 3), torch.ones(0, 2, dtype=torch.int64))
    mask = {"hidden": torch.ones(0, 4, dtype=torch.bool)}
    before = None if like is None else ((like, torch.ones(1, 5, dtype=torch.int64)), {})
    seen: list[Any] = []

    def compute(*inputs: Any, hidden: Any) -> torch.Tensor:
        seen.extend([*inputs, hidden])
        output: torch.Tensor = inputs[0] * 2
        return output

    output = compute_without_samples(torch.nn.Identity(), compute, (given, mask), before, 0)
    assert output.shape == (0, 3)
    row, numbers, hidden = seen
    assert torch.equal(row, (torch.ones(1, 3) if like is None else like).expand(2, 3))
    assert torch.equal(numbers, torch.ones(2, 2, dtype=torch.int64))  # another shape before
    assert torch.equal(hidden, torch.zeros(2, 4, dtype=torch.bool))
