"""`explain` says why a plan that was left to `spread` has no processes, and what to write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import anyrig


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def said_of(module: nn.Module, **options: Any) -> str:
    return str(anyrig.explain(anyrig.spread(module, "cpu", **options)))


def test_what_can_be_sent_is_said_with_what_to_write() -> None:
    net = nn.Linear(3, 2)
    weight = net.weight.data_ptr()
    text = said_of(net, loss=nn.MSELoss())
    assert "plan=Replicas(processes=2), with up to 4 processes, divides" in text
    assert "can be sent" in text
    assert net.weight.data_ptr() == weight  # which asking has not moved


def test_what_cannot_be_sent_is_said_as_the_first_step_would() -> None:
    net = nn.Linear(3, 2)
    net.register_forward_hook(lambda *_: None)
    text = said_of(net)
    assert "processes: impossible: a Linear has a hook (forward hooks)" in text
    model = anyrig.spread(net, "cpu", anyrig.Replicas(processes=2))
    with pytest.raises(anyrig.errors.SpreadError) as refused:
        model(torch.ones(4, 3))
    assert str(refused.value) in text


def test_nothing_is_said_of_a_plan_that_was_asked_for() -> None:
    assert "processes" not in said_of(nn.Linear(3, 2), plan=anyrig.Replicas())


def test_nothing_is_said_where_there_is_one_thread() -> None:
    torch.set_num_threads(1)
    assert "processes" not in said_of(nn.Linear(3, 2))


@pytest.mark.gpus(2)
def test_on_gpus_a_launcher_is_named() -> None:
    net = nn.Linear(3, 2)
    several = str(anyrig.explain(anyrig.spread(net, "cuda:0,1")))
    assert "processes: not used, because Replicas(processes=…) computes on the CPU" in several
    assert "start the script with anyrig run" in several
    assert "processes" not in str(anyrig.explain(anyrig.spread(net, "cuda:0")))
