"""What is remembered of a call, for which calls it holds, and when the module is asked again."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

import pytest
import torch
from torch import nn

from anyrig.errors import BatchError
from anyrig.parallel.parts.call import Call, describe_call, without_trace
from anyrig.parallel.parts.divided_dimension import Answer


class Asking:
    """Makes calls that share their answers, and lists the sample counts of further calls."""

    def __init__(self) -> None:
        self.known: dict[Hashable, Answer] = {}
        self.asked: list[int] = []

    def call(self, samples: list[int], returned: Any, like: Hashable = "form") -> Call:
        def once_more(count: int) -> Any:
            self.asked.append(count)
            return returned

        return Call(samples, 0, lambda: like, once_more, self.known, lambda: False)

    def find(
        self, samples: list[int], shape: tuple[int, ...], returned: Any, **like: Any
    ) -> Answer:
        tensors = [torch.empty(shape) for _ in samples]
        return self.call(samples, returned, **like).find_samples(tensors, ())


def test_an_answer_holds_for_one_form_one_place_and_one_number_of_dimensions() -> None:
    asking = Asking()
    assert asking.find([3, 3], (3, 3), torch.empty(3, 4)) == Answer(1)
    assert asking.find([3, 3], (3, 3), None) == Answer(1)
    assert asking.asked == [4]
    assert asking.find([3, 3], (3, 3, 3), torch.empty(3, 3, 4)) == Answer(2)
    assert asking.find([3, 3], (3, 3), torch.empty(4, 3), like="another") == Answer(0)
    other = asking.call([3, 3], {"y": torch.empty(4, 3)})
    assert other.find_samples([torch.empty(3, 3)] * 2, (("[{!r}]", "y"),)) == Answer(0)
    assert asking.asked == [4, 4, 4, 4]


def test_an_answer_that_the_shapes_exclude_is_found_anew() -> None:
    asking = Asking()
    assert asking.find([3, 3], (1, 5, 3), torch.empty(1, 5, 4)) == Answer(2)
    assert asking.find([5, 5], (1, 5, 3), torch.empty(1, 6, 3)) == Answer(1)
    assert asking.find([5, 5], (1, 5, 3), None) == Answer(1)
    assert asking.asked == [4, 6]


def test_a_refusal_is_not_remembered() -> None:
    asking = Asking()
    for returned, answer in (
        (torch.empty(4, 4), Answer(candidates=(0, 1))),
        (torch.empty(4, 3), Answer(0)),
    ):
        assert asking.find([3, 3], (3, 3), returned) == answer
    for returned, answer in (
        (torch.empty(2, 2), Answer(candidates=(0, 1))),
        (torch.empty(2, 1), Answer(0)),
    ):
        assert asking.find([3, 2], (1, 1), returned) == answer
    assert asking.asked == [4, 4, 5, 5]


@pytest.mark.parametrize(
    "returned", [None, torch.empty(3), torch.empty(4, 3, 1), [torch.empty(4, 3)]]
)
def test_another_form_of_one_sample_more_is_no_answer(returned: Any) -> None:
    words = r"\(3, 3\), \(3, 3\) do not show.* 3 and 3 samples.*with 4 samples.*show it either\. R"
    with pytest.raises(BatchError, match=words):
        Asking().find([3, 3], (3, 3), returned)


@pytest.mark.parametrize(("entries", "left"), [(1023, 1024), (1024, 1)])
def test_what_is_remembered_has_a_limit(entries: int, left: int) -> None:
    asking = Asking()
    asking.known.update({i: Answer(0) for i in range(entries)})
    asking.find([3, 3], (3, 3), torch.empty(4, 3))
    assert len(asking.known) == left
    assert asking.find([3, 3], (3, 3), None) == Answer(0)


@pytest.mark.parametrize(
    ("samples", "number", "asks"),
    [
        ([3, 3], 0, 0),
        ([3, 3], 4, 0),
        ([3, 3], 3, 1),
        ([3, 3], 6, 1),
        ([3, 2], 3, 0),
        ([3, 3], -3, 1),
    ],
)
def test_only_multiples_of_the_samples_may_be_counts(
    samples: list[int], number: int, asks: int
) -> None:
    asking = Asking()
    for _ in range(2):
        assert asking.call(samples, number).is_constant((number,), ())
    assert asking.asked == [4] * asks
    if asks:
        asking.known.clear()
        assert not asking.call(samples, number + 1).is_constant((number,), ())


def test_one_call_asks_the_module_once_for_all_its_outputs() -> None:
    asking = Asking()
    call = asking.call([3, 3], [torch.empty(4, 3), torch.empty(3, 4), 3])
    paths = [(("[{}]", i),) for i in range(3)]
    for path, dim in zip(paths[:2], (0, 1), strict=True):
        assert call.find_samples([torch.empty(3, 3)] * 2, path) == Answer(dim)
    assert call.is_constant((3,), paths[2])
    assert asking.asked == [4]


X = torch.empty(2, 3)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (((X,), {}), ((torch.empty(5, 7),), {}), True),
        (((X,), {}), ((X[0],), {}), False),
        (((X,), {}), ((), {"x": X}), False),
        (((), {"y": X}), ((), {"x": X}), False),
        (((X, X), {}), ((X,), {"y": X}), False),
        (((X, True), {}), ((X, False), {}), False),
        (((X, None), {}), ((X, False), {}), False),
        (((X, "mean"), {}), ((X, "sum"), {}), False),
        (((X,), {"way": "mean"}), ((X,), {"way": "sum"}), False),
        (((X, 1.5), {}), ((X, 2.5), {}), True),
        (((X, 1.5), {}), ((X, [2.5]), {}), False),
    ],
)
def test_calls_that_are_alike(one: Any, other: Any, alike: bool) -> None:
    module = nn.Linear(1, 1)
    assert (describe_call(module, *one) == describe_call(module, *other)) is alike
    before = describe_call(module, *one)
    assert describe_call(module.eval(), *one) != before


@pytest.mark.gpus(1)
def test_what_a_call_adds_to_its_module_is_removed() -> None:
    """A call adds attributes and buffers; a buffer at two places stays one, also in the call."""
    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)).to("cuda:0")
    shared = torch.zeros(2, device="cuda:0")
    for layer in module:
        layer.register_buffer("shared", shared)

    held: list[Any] = [{"steps": 1}, [1], {1}, deque([1], maxlen=2)]
    module[0].held, module[0].steps, module[0].seen = held[0], held[1], held[2]
    module[1].recent = held[3]

    def change() -> None:
        with without_trace([module], [torch.device("cuda:0")]):
            assert module[0].shared is module[1].shared is not shared
            assert not torch.is_grad_enabled()
            module[0].shared += 1
            module[0].held["steps"] += 1
            module[0].held["more"] = module[0].steps.append(2)
            module[0].seen.add(2)
            module[1].recent.extend([2, 3])
            module[1].cache = 3
            module[1].register_buffer("late", torch.ones(1))
            del module[0].shared
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change()
    assert module[0].shared is module[1].shared is shared
    assert not shared.any()
    assert not hasattr(module[1], "cache")
    assert held == [{"steps": 1}, [1], {1}, deque([1])]
    assert module[0].held is held[0]
    assert [name for name, _ in module[1].named_buffers()] == ["shared"]
    assert torch.is_grad_enabled()
