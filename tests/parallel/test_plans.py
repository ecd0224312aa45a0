"""Plans: what they refuse when they are made, which is chosen, and what `distribute` takes over."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.data import DataLoader
from trained_models import first_devices

import anyrig
from anyrig.errors import BatchError, SharesError, SpreadError
from anyrig.parallel.choose_plan import choose_plan
from anyrig.parallel.plans import Exact, Pipeline, Replicas, Shards


def test_a_plan_is_validated_when_it_is_made() -> None:
    for make, message in (
        (lambda: Exact(0), "must be a positive integer"),
        (lambda: Exact(4, Shards(offload=True)), "offload=True.* asks for something else"),
        (lambda: Exact(4, Replicas(shares="speed")), "shares='speed'.* asks for something else"),
        (lambda: Pipeline(checkpoint="sometimes"), "checkpoint='sometimes' is unknown"),
        (lambda: Replicas(ddp={"static_graph": True}), "each step may use other parameters"),
    ):
        with pytest.raises(SpreadError, match=message):
            make()
    with pytest.raises(SharesError, match="shares='fast' is not a way"):
        Replicas(shares="fast")
    assert Exact(4, Shards(blocks=[nn.Linear])).within == Shards(blocks=[nn.Linear])


def test_a_plan_refuses_what_it_cannot_follow() -> None:
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for plan, asked, message in (
        (Shards(), {"accumulate": True}, r"Shards; use plan=Replicas\(\)"),
        (Shards(mixed_precision=half), {"precision": "bfloat16"}, "use one of the two"),
        (Exact(4), {}, "so it needs the loss"),
        (Exact(4), {"loss": nn.MSELoss(), "precision": "float16"}, "gradients would vanish"),
    ):
        with pytest.raises(SpreadError, match=message):
            anyrig.spread(nn.Linear(1, 1), "cpu", plan, **asked)  # type: ignore[arg-type]


def test_training_that_does_not_fit_one_device_is_not_replicated() -> None:
    module = nn.Linear(10, 10)  # 440 bytes, gradients as many, and two moments
    module.register_buffer("mean", torch.zeros(10))
    needed = 4 * 440 + 40
    for totals in ([], [None], [needed, 10**6]):
        assert choose_plan(module, totals, otherwise=Shards()) == (Replicas(), "")
    plan, reason = choose_plan(module, [10**6, needed - 1], otherwise=Shards())
    assert plan == Shards()
    assert reason.startswith("parameters, gradients and Adam's state take 1.76 KiB, and the sm")
    assert choose_plan(module, [1], otherwise=None) == (Replicas(), "")
    module.requires_grad_(False)
    assert choose_plan(module, [480], otherwise=Shards()) == (Replicas(), "")
    assert choose_plan(nn.LazyLinear(3), [1], otherwise=Shards()) == (Replicas(), "")


@pytest.mark.parametrize(
    ("former", "plan"),
    [
        ({"how": "shard"}, Shards()),
        ({"how": "pipeline", "schedule": "gpipe"}, Pipeline(schedule="gpipe")),
        ({"how": "split"}, Pipeline(micro_batches=1)),
        ({"shares": [1]}, Replicas(shares=[1])),
        ({"how": "shard", "logical_shards": 4}, Exact(4, Shards())),
    ],
    ids=str,
)
def test_options_from_before_plans_mean_a_plan(former: dict[str, Any], plan: Any) -> None:
    model = anyrig.spread(nn.Linear(1, 1), "cpu", loss=nn.MSELoss(), **former)
    assert anyrig.explain(model).plan == plan
    with pytest.raises(SpreadError, match="give a plan only"):
        anyrig.spread(nn.Linear(1, 1), "cpu", Replicas(), **former)
    with pytest.raises(TypeError, match="unexpected keyword argument 'hows'"):
        anyrig.spread(nn.Linear(1, 1), "cpu", hows="shard")


@pytest.mark.gpus(2)
def test_a_model_too_large_for_a_device_becomes_a_pipeline() -> None:
    one = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))).double()
    small = [replace(device, total_bytes=1000) for device in first_devices(2)]
    model = anyrig.spread(copy.deepcopy(one), anyrig.Rig(tuple(small), "two small GPUs"))
    layout = anyrig.explain(model)
    assert layout.plan == Pipeline()
    assert str(layout).startswith(
        "pipeline on cuda:0, cuda:1: parameters, gradients and Adam's state take 2.50 "
        "KiB, and the smallest device has 1000 B; two small GPUs\n"
    )
    x = torch.randn(6, 4).double()
    torch.testing.assert_close(model(x).cpu(), one(x))
    assert anyrig.explain(anyrig.spread(one, first_devices(2))).plan == Replicas()


def test_a_loader_takes_over_what_the_plan_of_its_model_says() -> None:
    loss, data = nn.MSELoss(), DataLoader([*range(12)], 6)
    exact = anyrig.spread(nn.Linear(1, 1), "cpu", plan=Exact(3), loss=loss)
    loader: Any = anyrig.distribute(data, exact)
    assert loader.logical_shards == 3
    for more in ({"divided": True}, {"shares": "speed"}):
        with pytest.raises(BatchError, match=r"by the indices of its samples|shares are 'even'"):
            anyrig.distribute(data, exact, **more)  # type: ignore[arg-type]
    planned = anyrig.spread(nn.Linear(1, 1), "cpu", plan=Replicas(shares=[2]))
    assert anyrig.distribute(data, planned).logical_shards is None  # type: ignore[attr-defined]
    with pytest.raises(BatchError, match=r"shares='even'.* whose shares are \[2\]."):
        anyrig.distribute(data, planned, shares="even")
    with pytest.raises(SpreadError, match="this Linear was not spread"):
        anyrig.distribute(data, nn.Linear(1, 1))


@pytest.mark.gpus(2)
def test_a_batch_that_is_not_cut_has_its_backward_pass_when_the_caller_asks() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model = anyrig.spread(net, first_devices(2), Pipeline(micro_batches=1), loss=nn.MSELoss())
    assert "schedule gpipe: one micro-batch passes forward" in str(anyrig.explain(model))
