"""The wrapper's attributes, state and copies are those of the module."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from changed_net import Net, spread
from torch import Tensor, nn
from trained_models import on_lead

pytestmark = [
    pytest.mark.gpus(2),
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
]


def test_attributes_and_methods_are_those_of_the_module(net: Net) -> None:
    model = spread(net)
    assert model.module is net
    assert model.scale == 1.0
    assert model.describe() == "scale 1.0"
    assert model.first is net.first
    with pytest.raises(AttributeError, match="'absent'"):
        model.absent  # noqa: B018


def test_an_attribute_set_through_the_wrapper_reaches_the_module(net: Net, x: Tensor) -> None:
    model = spread(net)
    model.scale = 4.0
    assert net.scale == 4.0
    torch.testing.assert_close(model(x), net(x))


def test_parameters_are_the_callers(net: Net) -> None:
    model = spread(net)
    assert [id(p) for p in model.parameters()] == [id(p) for p in net.parameters()]
    assert [name for name, _ in model.named_parameters()] == [n for n, _ in net.named_parameters()]
    assert list(model.state_dict()) == list(net.state_dict())


def test_states_go_both_ways_between_a_module_stock_and_anyrig(net: Net, x: Tensor) -> None:
    model = spread(net)
    stock = nn.DataParallel(on_lead(Net()))
    model.load_state_dict(stock.state_dict())  # its names begin with "module."
    torch.testing.assert_close(model(x), stock(x))
    other = on_lead(Net())
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x), net(x))
    stock.module.load_state_dict(model.state_dict())
    model.load_state_dict(on_lead(Net()).state_dict())
    model.load_state_dict(other.state_dict())
    torch.testing.assert_close(model(x), other(x))


def test_a_state_that_does_not_fit_is_refused(net: Net) -> None:
    model = spread(net)
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({})
    state = net.state_dict()
    state["extra"] = torch.ones(1)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*extra"):
        model.load_state_dict(state)
    kept = model.load_state_dict(state, strict=False)
    assert kept.unexpected_keys == ["extra"]


def test_a_deep_copy_is_a_model_of_its_own(net: Net, x: Tensor) -> None:
    model = spread(net)
    model(x).sum().backward()
    other = copy.deepcopy(model)
    expected = model(x)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert other(x).count_nonzero() == 0
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("saving", ["pickle", "torch"])
def test_a_saved_model_is_read_back(net: Net, x: Tensor, saving: str) -> None:
    model = spread(net)
    model(x).sum().backward()
    if saving == "pickle":
        again = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
    torch.testing.assert_close(again(x), model(x))
    again(x).sum().backward()


def test_a_state_whose_names_begin_with_module_may_be_the_module_s_own() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x)

    module = on_lead(Wrapper())
    model = spread(module)
    state = {name: value + 1 for name, value in module.state_dict().items()}
    model.load_state_dict(state)
    torch.testing.assert_close(module.state_dict(), state, check_device=True)


def test_the_wrapper_lists_deletes_and_applies_what_the_module_has(net: Net) -> None:
    model = spread(net)
    assert {"describe", "scale", "first", "refresh"} <= set(dir(model))
    assert dir(model) == sorted(set(dir(model)))
    del model.scale
    assert not hasattr(net, "scale")
    seen: list[nn.Module] = []
    assert model.apply(seen.append) is model
    assert seen == [net.first, net.second, net]
    other = Net()
    with pytest.raises(AttributeError, match="cannot be replaced; spread the new module"):
        model.module = other
    assert model.module is net
    inner = repr(net).replace("\n", "\n  ")
    assert repr(model) == (f"SpreadModule(\n  replicas on cuda:0, cuda:1\n  (module): {inner}\n)")
    assert model.device_ids == [0, 1]


def test_a_state_of_a_larger_module_is_loaded_into_its_spread_part(net: Net, x: Tensor) -> None:
    larger = nn.Sequential(spread(net))
    state = {name: torch.ones_like(value) for name, value in larger.state_dict().items()}
    assert list(state) == [f"0.{name}" for name in net.state_dict()]
    larger.load_state_dict(state)
    assert all((value == 1).all() for value in net.parameters())
    torch.testing.assert_close(larger(x), net(x))
    with pytest.raises(RuntimeError, match=r"size mismatch for 0\.second\.bias"):
        larger.load_state_dict({**state, "0.second.bias": torch.ones(3)})


def test_a_state_is_assigned_where_asked(net: Net, x: Tensor) -> None:
    model = spread(net)
    state = {name: torch.full_like(value, 0.5) for name, value in net.state_dict().items()}
    model.load_state_dict(state, assign=True)
    assert net.first.weight.data_ptr() == state["first.weight"].data_ptr()
    torch.testing.assert_close(model(x), net(x))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_cleared_through_the_wrapper(net: Net, x: Tensor, set_to_none: bool) -> None:
    model = spread(net)
    model(x).sum().backward()
    model.zero_grad(set_to_none)
    assert (net.first.weight.grad is None) is set_to_none
    assert set_to_none or not net.first.weight.grad.any()
