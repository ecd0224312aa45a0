"""Hooks, several passes and named tensors with a deferred half of a backward pass."""

from __future__ import annotations

import copy
from typing import Any

import torch
from halved_backward import CLOSE, gradients_of, made, split, weighted
from torch import Tensor, nn

from anyrig.parallel.engines.pipeline.weight_gradients import DeferredWeights


def test_a_backward_pass_to_named_tensors_reaches_the_parameters() -> None:
    module, value = made("twice, and once otherwise", True)
    reference, same = copy.deepcopy(module), value.detach().clone().requires_grad_()
    weighted(reference(same)).backward()
    deferred = DeferredWeights(module.parameters())
    with deferred.deferring():
        loss = weighted(module(value))
    named = [value, *module.parameters()]
    with deferred.collecting():
        gradients = torch.autograd.grad(loss, named, allow_unused=True)
    for tensor, gradient in zip(named, gradients, strict=True):
        tensor.grad = None if gradient is None else gradient.clone()
    deferred.compute()
    for key, gradient in gradients_of(reference, same).items():
        torch.testing.assert_close(gradients_of(module, value)[key], gradient, **CLOSE)


def test_a_backward_pass_elsewhere_computes_at_once() -> None:
    module, value = made("layers", True)
    reference, same = copy.deepcopy(module), value.detach().clone().requires_grad_()
    weighted(reference(same)).backward()
    deferred = DeferredWeights(module.parameters())
    with deferred.deferring():
        weighted(module(value)).backward()
    assert not deferred._kept
    for key, gradient in gradients_of(reference, same).items():
        torch.testing.assert_close(gradients_of(module, value)[key], gradient, **CLOSE)


def test_a_graph_may_be_used_twice() -> None:
    module, value = made("layers", True)
    reference, same = copy.deepcopy(module), value.detach().clone().requires_grad_()
    (2 * weighted(reference(same))).backward()
    deferred = DeferredWeights(module.parameters())
    with deferred.deferring():
        loss = weighted(module(value))
    with deferred.collecting():
        loss.backward(retain_graph=True)
        loss.backward()
    deferred.compute()
    for key, gradient in gradients_of(reference, same).items():
        torch.testing.assert_close(gradients_of(module, value)[key], gradient, **CLOSE)


def test_hooks_on_parameters_get_whole_gradients() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)).double()
    module[1].weight = module[0].weight
    seen = {}
    module[0].weight.register_hook(lambda gradient: gradient * 2)
    module[2].bias.register_post_accumulate_grad_hook(
        lambda parameter: seen.update(bias=parameter.grad.clone())
    )
    value = torch.randn(5, 4, dtype=torch.double)
    reference = copy.deepcopy(module)
    reference[0].weight.register_hook(lambda gradient: gradient * 2)
    weighted(reference(value)).backward()
    assert split(module, value) == 1  # only the last layer's weight
    for one, other in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, **CLOSE)
    torch.testing.assert_close(seen["bias"], reference[2].bias.grad)


def test_backward_hooks_of_modules_get_the_gradients() -> None:
    module, value = made("layers", True)
    reference, same = copy.deepcopy(module), value.detach().clone().requires_grad_()
    seen: list[list[Tensor]] = [[], []]
    for found, each in zip(seen, (module, reference), strict=True):
        for part in each:
            part.register_full_backward_hook(
                lambda _, to, of, found=found: found.extend([*to, *of])
            )
    weighted(reference(same)).backward()
    assert split(module, value) == 2
    assert len(seen[0]) == len(seen[1]) == 8
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_a_hook_may_drop_a_gradient() -> None:
    class Dropped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return None

    module, value = made("linear", True)
    deferred = DeferredWeights(module.parameters())
    with deferred.deferring():
        loss = weighted(Dropped.apply(module(value)))
    with deferred.collecting():
        loss.backward()
    assert not deferred._kept
