"""Quantised weights over replicas and pipelines compute one device's numbers, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyrig
from anyrig.errors import SpreadError
from anyrig.parallel.own_class import find_own_class, plain_tensors
from anyrig.parallel.plans import Pipeline, Plan, Replicas
from quantised_layers import LAYERS, ScaledTensor, make_quantised, quantise

pytestmark = pytest.mark.gpus(2)
PLANS = (Replicas(), Pipeline())


def inputs(samples: int = 6) -> Tensor:
    return torch.randn(samples, 8, generator=torch.Generator().manual_seed(3))


def assert_same_steps(one: nn.Module, model: Any, module: nn.Module, steps: int = 3) -> None:
    for _ in range(steps):
        expected, found = one(inputs().to("cuda:0")), model(inputs())
        torch.testing.assert_close(found.to("cuda:0"), expected)
        for each, owner in ((expected, one), (found, module)):
            each.square().mean().backward()
            for parameter in owner[4].parameters():
                with torch.no_grad():
                    parameter.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None
        torch.testing.assert_close(module[4].weight.to("cuda:0"), one[4].weight)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_trains_as_on_one_device(kind: str, plan: Plan, used: bool) -> None:
    one, module = make_quantised(kind).to("cuda:0"), make_quantised(kind)
    if used:
        module.to("cuda:0")(inputs().to("cuda:0"))
    identities = [id(each) for each in module.parameters()]
    model = anyrig.spread(module, "cuda:0,1", plan=plan)
    assert_same_steps(one, model, module)
    assert [id(each) for each in module.parameters()] == identities
    for own in find_own_class(module):
        assert {each.device for each in plain_tensors(own.tensor)} == {own.tensor.device}
    devices = {each.device.index for each in module.parameters()}
    assert devices == ({0, 1} if isinstance(plan, Pipeline) else {0})


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_checkpoint_reaches_every_device(kind: str, plan: Plan, tmp_path: Path) -> None:
    saved, module = make_quantised(kind, 0), make_quantised(kind, 1)
    expected = saved(inputs())
    anyrig.save(tmp_path / "a", model=saved)
    model = anyrig.spread(module, "cuda:0,1", plan=plan)
    model(inputs())
    anyrig.load(tmp_path / "a", model=model)
    torch.testing.assert_close(model(inputs()).cpu(), expected)
    anyrig.save(tmp_path / "b", model=model)
    again = make_quantised(kind, 2)
    anyrig.load(tmp_path / "b", model=again)
    assert torch.equal(again(inputs()), expected)


def test_replicas_follow_what_replaces_or_writes_a_weight() -> None:
    one, module = make_quantised("wrapper").to("cuda:0"), make_quantised("wrapper")
    model = anyrig.spread(module, "cuda:0,1")

    def check() -> None:
        torch.testing.assert_close(model(inputs()), one(inputs().to("cuda:0")))

    check()
    for each in (one, module):
        each[0].weight.scale.mul_(2)  # written in place
    check()
    for each in (one, module):
        codes, scale = each[0].weight.codes, each[0].weight.scale
        each[0].weight = nn.Parameter(ScaledTensor(codes.clone(), scale / 3), requires_grad=False)
    check()
    for each in (one, module):
        each[0].weight.codes.data.neg_()  # without a new version
    model.refresh()
    check()


def test_what_is_trained_is_refused_by_name() -> None:
    module = nn.Sequential(nn.Linear(8, 8), quantise(nn.Linear(8, 8)))
    module[1].weight = nn.Parameter(module[1].weight.data)
    assert module[1].weight.requires_grad
    with pytest.raises(SpreadError, match=r"1\.weight of a Linear is a quantised_layers\.ScaledT"):
        anyrig.spread(module, "cuda:0,1")
    module[1].weight.requires_grad_(False)
    model = anyrig.spread(module, "cuda:0,1")
    model(inputs())
    module[1].weight.requires_grad_(True)
    module[0] = nn.Linear(8, 8, device="cuda:0")  # so that the replicas are made again
    with pytest.raises(SpreadError, match=r"it is not a frozen parameter"):
        model(inputs())


def test_a_buffer_that_wraps_tensors_is_refused_by_name() -> None:
    module = nn.Sequential(nn.Linear(8, 8))
    module.register_buffer("table", quantise(nn.Linear(8, 8)).weight.data)
    with pytest.raises(SpreadError, match=r"table of a Sequential is a quantised_layers\.Scaled"):
        anyrig.spread(module, "cuda:0,1")


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("on_cpu_first", [False, True], ids=["new", "moved"])
def test_layers_of_bitsandbytes_train_as_on_one_device(
    bits: int, plan: Plan, on_cpu_first: bool
) -> None:
    library: Any = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")

    def make() -> nn.Sequential:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for _ in range(2):
            layer = library.nn.Linear8bitLt(64, 64, has_fp16_weights=False)
            layers += [library.nn.Linear4bit(64, 64) if bits == 4 else layer, nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(64, 8))

    one, module = make().to("cuda:0"), make()
    if on_cpu_first and bits == 8:
        one, module = make().to("cpu"), make().to("cpu")
        one = anyrig.spread(one, "cuda:0").module  # moves what bitsandbytes does not
    model = anyrig.spread(module, "cuda:0,1", plan=plan)
    for _ in range(2):
        x = torch.randn(8, 64)
        torch.testing.assert_close(model(x).to("cuda:0"), one(x.to("cuda:0")))
