"""Which lists hold samples, and how they are divided."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyrig.errors import BatchError
from anyrig.parallel.parts.samples import name_argument
from anyrig.parallel.parts.scatter import divide, scatter

DEVICES = ["cuda:0", "cuda:1", "cuda:2"]
PLACES = [torch.device(device) for device in DEVICES]


def samples_of(count: int) -> list[dict[str, Any]]:
    rows = [torch.randn(3, 2, 4, dtype=torch.float64) for _ in range(count)]
    return [{"img": row, "label": torch.tensor(i % 4), "id": i} for i, row in enumerate(rows)]


@pytest.mark.gpus(3)
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_samples_is_divided_by_its_entries(kind: Any) -> None:
    batch = kind(samples_of(5))
    parts = scatter(batch, DEVICES)
    assert [[each["id"] for each in part] for part in parts] == [[0, 1], [2, 3], [4]]
    for part, device in zip(parts, PLACES, strict=True):
        assert type(part) is kind
        assert all(each["img"].device == each["label"].device == device for each in part)
        assert all(torch.equal(each["img"].cpu(), batch[each["id"]]["img"]) for each in part)


def shapes_of_parts(args: tuple[Any, ...], target: Any = None) -> Any:
    kwargs = {} if target is None else {"target": target}
    values, samples = divide(
        (args, kwargs), None, lambda n: [n - n // 2, n // 2], 0, name_argument, True
    )
    return samples, values


def test_what_decides_whether_entries_are_samples() -> None:
    img, views = samples_of(3), [{"x": torch.ones(8, 2)}, {"x": torch.ones(8, 3)}]
    # Images and their targets: every list of this length is a list of samples.
    images = [torch.ones(3, 2)] * 3
    samples, (first, second) = shapes_of_parts((images, [{"boxes": torch.ones(3, 4)}] * 3))
    assert samples == (2, 1)
    assert [len(each) for each in (*first[0], *second[0])] == [2, 2, 1, 1]
    # Tensors outside have as many samples as the list has entries.
    samples, (first, _) = shapes_of_parts((samples_of(5), torch.ones(5)))
    assert samples == (3, 2)
    assert [len(each) for each in first[0]] == [3, 3]
    # Tensors outside have as many samples as the tensors inside.
    for args, target in (((views, torch.ones(8)), None), ((views,), torch.ones(8))):
        samples, (first, _) = shapes_of_parts(args, target)
        assert samples == (4, 4)
        assert [tuple(each["x"].shape) for each in first[0][0]] == [(4, 2), (4, 3)]
    # Dicts without a common key are different things.
    samples, _ = shapes_of_parts(([{"x": torch.ones(8, 2)}, {"y": torch.ones(8)}],))
    assert samples == (4, 4)
    # A list alone, and one without tensors that has an entry for each sample.
    assert shapes_of_parts((img,))[0] == (2, 1)
    assert [len(part[0][1]) for part in shapes_of_parts((torch.ones(3), [{"id": 1}] * 3))[1]] == [
        2,
        1,
    ]
    # An entry without a value, such as an optional caption, is that of a sample.
    first, second = shapes_of_parts((torch.ones(3), ["a cat", None, "a dog"]))[1]
    assert (first[0][1], second[0][1]) == (["a cat", None], ["a dog"])


def test_a_list_of_dicts_that_may_be_both_is_refused() -> None:
    boxes = [{"boxes": torch.ones(2, 4)}, {"boxes": torch.ones(2, 4)}]
    cases: list[tuple[tuple[Any, ...], str]] = [
        ((torch.ones(2, 3), boxes), r"argument 1 is a list of 2 dicts, and .* Collate the samples"),
        ((torch.ones(7, 3), boxes), r"have 2 samples along dimension 0, but the batch has 7 sam"),
        ((boxes, [{"x": torch.ones(2)}] * 3), r"list of dicts has a different length: 2 and 3"),
        (({"a": boxes},), r"argument 0\['a'\] is a list of 2 dicts inside another argument"),
        (({"a": boxes, "x": torch.ones(2)},), r"argument 0\['a'\] is a list .* could be its sam"),
    ]
    for args, message in cases:
        with pytest.raises(BatchError, match=message):
            shapes_of_parts(args)
    with pytest.raises(BatchError, match="Collate the samples into tensors"):
        shapes_of_parts((samples_of(5), torch.ones(4)))
    # With one sample, both readings are the same.
    assert shapes_of_parts((torch.ones(1, 3), [{"boxes": torch.ones(1, 4)}]))[0] == (1, 0)
