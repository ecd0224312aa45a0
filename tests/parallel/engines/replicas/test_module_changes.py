"""Changes of the caller's module take effect in every replica's next step."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_models import first_devices, on_lead

import anyrig
from anyrig.parallel.plans import Replicas

pytestmark = [
    pytest.mark.gpus(2),
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
        self.scale = 1.0
        self.options = {"shift": 0.0}

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) * self.scale + self.options["shift"]

    def describe(self) -> str:
        return f"scale {self.scale}"


def spread(module: nn.Module, **options: Any) -> Any:
    return anyrig.spread(module, first_devices(2), **options)


@pytest.fixture
def net() -> Net:
    return on_lead(Net())


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 4, dtype=torch.float64, device="cuda:0")


def change_weight_in_place(net: Net) -> None:
    with torch.no_grad():
        net.first.weight.mul_(3)


def change_data_in_place(net: Net) -> None:
    net.first.weight.data.mul_(3)  # does not change the version


def change_data_by_copy(net: Net) -> None:
    for parameter in net.parameters():
        parameter.data.copy_(torch.ones_like(parameter))


def assign_data(net: Net) -> None:
    net.first.weight.data = 3 * net.first.weight.data


def replace_parameter(net: Net) -> None:
    net.first.weight = nn.Parameter(3 * net.first.weight.detach())


def replace_module(net: Net) -> None:
    net.second = nn.Linear(4, 2, bias=False).to("cuda:0", torch.float64)


def drop_bias(net: Net) -> None:
    net.second.bias = None


def change_attribute(net: Net) -> None:
    net.scale = 5.0


def change_inside_attribute(net: Net) -> None:
    net.options["shift"] = 7.0


def load(net: Net) -> None:
    net.load_state_dict(on_lead(Net()).state_dict())


def load_assigned(net: Net) -> None:
    net.load_state_dict(on_lead(Net()).state_dict(), assign=True)


def add_buffer(net: Net) -> None:
    net.register_buffer("added", torch.ones(2, device="cuda:0"))
    net.register_forward_hook(lambda module, _, output: output + module.added)


@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
@pytest.mark.parametrize(
    "change",
    [
        change_weight_in_place,
        change_data_in_place,
        change_data_by_copy,
        assign_data,
        replace_parameter,
        replace_module,
        drop_bias,
        change_attribute,
        change_inside_attribute,
        load,
        load_assigned,
        add_buffer,
    ],
)
def test_a_change_holds_at_the_next_step(net: Net, x: Tensor, change: Any, mode: str) -> None:
    model = spread(net).train(mode == "train")
    with torch.set_grad_enabled(mode != "no_grad"):
        model(x)
        model(x)
        change(net)
        if mode == "no_grad" and change in (change_data_in_place, change_data_by_copy):
            model.refresh()
        torch.testing.assert_close(model(x), net(x))
    if mode == "train":
        model.zero_grad()
        model(x).sum().backward()
        found = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        net(x).sum().backward()
        torch.testing.assert_close(found, [p.grad for p in net.parameters()])


def test_averaged_weights_swapped_in_and_out(net: Net, x: Tensor) -> None:
    """Evaluation with averaged weights swaps twice, without an optimizer's step in between."""
    model = spread(net)
    saved = [p.detach().clone() for p in net.parameters()]
    before = model(x)
    for parameter in net.parameters():
        parameter.data.copy_(parameter.data / 2)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), net(x))
    for parameter, value in zip(net.parameters(), saved, strict=True):
        parameter.data.copy_(value)
    torch.testing.assert_close(model.train()(x), before)


def test_train_and_eval_reach_every_replica(x: Tensor) -> None:
    net = on_lead(nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4)))
    model = spread(net)
    model(x)
    assert model.eval() is model
    assert not net.training
    assert not net[0].training
    torch.testing.assert_close(model(x), net(x))
    net.train()
    assert not torch.equal(model(x), model(x))


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


def test_forward_hooks_run_on_every_replica(net: Net, x: Tensor) -> None:
    seen: list[tuple[str, torch.device, int]] = []
    net.register_forward_pre_hook(
        lambda module, args: seen.append(("before", args[0].device, len(args[0])))
    )
    model = spread(net)
    model(x)
    handle = net.second.register_forward_hook(
        lambda module, args, output: seen.append(("after", output.device, len(output)))
    )
    model(x)
    handle.remove()
    model(x)
    devices = first_devices(2).torch_devices
    for device in devices:
        assert seen.count(("before", device, 3)) == 3
        assert seen.count(("after", device, 3)) == 1
    assert len(seen) == 8


class Capturing(Net):
    """Returns what a layer computed, as its hook saw; the first forward registers the hook."""

    has_hook = False

    def forward(self, x: Tensor) -> Tensor:
        first: Any = self.first
        first.captured = []
        if not self.has_hook:
            first.register_forward_hook(self.capture, with_kwargs=self.with_kwargs)
            self.has_hook = True
        super().forward(x)
        return torch.cat(first.captured, 1)

    @staticmethod
    def capture(layer: Any, *arguments: Any) -> None:
        layer.captured.append(arguments[-1])

    with_kwargs = False


class CapturingWithKwargs(Capturing):
    with_kwargs = True


@pytest.mark.parametrize("kind", [Capturing, CapturingWithKwargs])
def test_a_forward_that_registers_hooks(kind: type[Capturing], x: Tensor) -> None:
    net = on_lead(kind())
    alone = copy.deepcopy(net)
    model = spread(net)
    for _ in range(3):
        found = model(x)
        torch.testing.assert_close(found, alone(x))
    assert len(net.first._forward_hooks) == 1


def test_a_forward_that_registers_and_removes_a_hook(x: Tensor) -> None:
    class Observing(Net):
        def forward(self, x: Tensor) -> Tensor:
            seen: list[Tensor] = []
            handle = self.first.register_forward_hook(lambda *arguments: seen.append(arguments[-1]))
            super().forward(x)
            handle.remove()
            return torch.cat(seen, 1)

    net = on_lead(Observing())
    alone = copy.deepcopy(net)
    model = spread(net)
    for _ in range(3):
        torch.testing.assert_close(model(x), alone(x))


def test_a_hook_of_the_wrapper_runs_once_with_the_whole_batch(net: Net, x: Tensor) -> None:
    model = spread(net)
    seen: list[int] = []
    model.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    model(x)
    assert seen == [6]


def test_parameter_hooks_run_once_with_the_whole_gradient(net: Net, x: Tensor) -> None:
    net(x).sum().backward()
    expected = net.first.weight.grad
    net.first.weight.grad = None
    seen: list[Tensor] = []
    after: list[Tensor] = []
    net.first.weight.register_hook(lambda grad: seen.append(grad) or 2 * grad)
    net.first.weight.register_post_accumulate_grad_hook(lambda p: after.append(p.grad.clone()))
    model = spread(net)
    model(x).sum().backward()
    torch.testing.assert_close(seen, [expected])
    torch.testing.assert_close(after, [2 * expected])
    torch.testing.assert_close(net.first.weight.grad, 2 * expected)


def test_backward_hooks_run_on_every_replica(net: Net, x: Tensor) -> None:
    seen: list[torch.device] = []
    net.first.register_full_backward_hook(
        lambda module, before, grads: seen.append(grads[0].device)
    )
    spread(net)(x.requires_grad_()).sum().backward()
    assert sorted(map(str, seen)) == ["cuda:0", "cuda:1"]


def test_an_optimizer_made_before_or_after(net: Net, x: Tensor) -> None:
    before = torch.optim.Adam(net.parameters())
    model = spread(net)
    after = torch.optim.Adam(model.parameters())
    for optimizer in (before, after):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        torch.testing.assert_close(model(x), net(x))


def test_the_module_alone_still_works_between_steps(net: Net, x: Tensor) -> None:
    model = spread(net)
    for _ in range(2):
        model(x).sum().backward()
        net(x).sum().backward()
    found = net.first.weight.grad / 4
    net.zero_grad()
    net(x).sum().backward()
    torch.testing.assert_close(found, net.first.weight.grad)


def test_two_wrappers_of_one_module(net: Net, x: Tensor) -> None:
    one, other = spread(net), spread(net, plan=Replicas(shares=[1, 5]))
    (one(x).sum() + other(x).sum()).backward()
    found = net.first.weight.grad / 2
    net.zero_grad()
    net(x).sum().backward()
    torch.testing.assert_close(found, net.first.weight.grad)


def test_moving_the_module_away_is_told(net: Net, x: Tensor) -> None:
    model = spread(net)
    model(x)
    model.to("cpu")
    with pytest.raises(RuntimeError, match=r"cpu"):
        model(x)
    model.to("cuda:0")
    torch.testing.assert_close(model(x), net(x))


def test_another_dtype_holds_at_the_next_step(net: Net, x: Tensor) -> None:
    model = spread(net)
    model(x)
    model.float()
    assert model(x.float()).dtype is torch.float32


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
