"""What a module may return, spread over two devices."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from calling_modules import Calling, inputs, spread
from torch import Tensor
from trained_models import on_lead

# Without cuDNN, as on a virtual GPU, PyTorch warns when a recurrent module reaches CUDA.
pytestmark = [
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
    pytest.mark.gpus(2),
    pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN"),
]


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    loss: Tensor | None = None


class Record(OrderedDict[str, Any]):
    """A mapping whose keys are attributes too, as the outputs of several libraries are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@pytest.mark.parametrize(
    "make",
    [
        lambda y: (y, y.sin()),
        lambda y: [y, [y.sin()], (y.cos(),)],
        lambda y: {"out": y, "inner": {"sin": y.sin()}},
        lambda y: OrderedDict(b=y, a=y.sin()),
        lambda y: Pair(y, y.sin()),
        lambda y: Output(y, (y.sin(),)),
        lambda y: Record(logits=y, loss=None),
        lambda y: (y, None),
    ],
    ids=["tuple", "list", "dict", "ordered", "named", "dataclass", "record", "none"],
)
def test_what_is_returned_keeps_its_form(make: Any) -> None:
    module = on_lead(Calling(make))
    x = inputs()
    expected, found = module(x), spread(module)(x)
    assert type(found) is type(expected)
    if isinstance(expected, Output):
        expected, found = vars(expected), vars(found)
    torch.testing.assert_close(found, expected)


def test_what_is_no_tensor_is_returned_as_it_is() -> None:
    kept = object()
    module = on_lead(Calling(lambda y: {"out": y, "name": "linear", "layers": 3, "kept": kept}))
    x = inputs()
    found = spread(module)(x)
    torch.testing.assert_close(found.pop("out"), module.linear(x))
    assert found == {"name": "linear", "layers": 3, "kept": kept}


def test_objects_that_differ_are_listed() -> None:
    found = spread(on_lead(Calling(lambda y: {"cache": object()})))(inputs(5))
    assert [type(each) for each in found["cache"]] == [object, object]


def test_a_module_that_returns_nothing() -> None:
    seen: list[int] = []
    module = on_lead(Calling(lambda y: seen.append(len(y))))
    model = spread(module)
    assert model(inputs(5)) is None
    seen.clear()  # a first call computes halves, too
    assert model(inputs(5)) is None
    assert sorted(seen) == [2, 3]
