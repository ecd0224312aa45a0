"""Hooks of the module, of its parameters and of the wrapper run on the replicas they belong to."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from changed_net import Net, spread
from torch import Tensor
from trained_models import first_devices, on_lead

pytestmark = [
    pytest.mark.gpus(2),
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
]


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
