"""Changes of the caller's module take effect in every replica's next step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from changed_net import Net, spread
from torch import Tensor, nn
from trained_models import on_lead

from anyrig.parallel.plans import Replicas

pytestmark = [
    pytest.mark.gpus(2),
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
]


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
