"""Backward passes in two halves: the same gradients, with the weights' work in the second half."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from halved_backward import CLOSE, finish, gradients_of, made, split, weighted
from split_modules import CASES
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from anyrig.parallel.engines.pipeline.weight_gradients import DeferredWeights, compute_weights


@pytest.mark.parametrize("has_gradient", [True, False], ids=["later stage", "first stage"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_autograd(name: str, has_gradient: bool) -> None:
    module, value = made(name, has_gradient)
    reference, same = (
        copy.deepcopy(module),
        value.detach().clone().requires_grad_(value.requires_grad),
    )
    weighted(reference(same)).backward()
    count = split(module, value)
    found, expected = gradients_of(module, value), gradients_of(reference, same)
    for key, gradient in expected.items():
        if gradient is None:
            assert found[key] is None, key
        else:
            torch.testing.assert_close(
                found[key], gradient, msg=lambda text, key=key: f"{key}: {text}", **CLOSE
            )
    if has_gradient:
        assert count == CASES[name].deferred


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_several_passes_are_added(name: str) -> None:
    module, value = made(name, True)
    reference = copy.deepcopy(module)
    same = value.detach().clone().requires_grad_(value.requires_grad)
    for _ in range(3):
        weighted(reference(same)).backward()
        split(module, value)
    found, expected = gradients_of(module, value), gradients_of(reference, same)
    for key, gradient in expected.items():
        if gradient is not None:
            torch.testing.assert_close(found[key], gradient, **CLOSE)


def flops_of(work: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", ["linear", "layers", "conv2d", "attention", "encoder", "bmm"])
def test_the_weights_part_of_the_work_is_done_later(name: str) -> None:
    module, value = made(name, True)
    loss = weighted(module(value))
    whole = flops_of(loss.backward)
    with torch.no_grad():
        inputs_only = copy.deepcopy(module).requires_grad_(False)
    loss = weighted(inputs_only(value.detach().requires_grad_()))
    of_inputs = flops_of(loss.backward)

    deferred = DeferredWeights(module.parameters())
    with deferred.deferring():
        loss = weighted(module(value))
    with deferred.collecting():
        first_half = flops_of(loss.backward)
    second_half = flops_of(deferred.compute)
    assert first_half == of_inputs
    assert second_half == whole - of_inputs > 0


@pytest.mark.parametrize("name", ["layers", "in place", "encoder", "conv1d", "addmm", "unbind"])
def test_autocast(name: str) -> None:
    module, value = made(name, True)
    module, value = module.float(), value.detach().float().requires_grad_()
    reference, same = copy.deepcopy(module), value.detach().clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = weighted(reference(same))
    loss.backward()
    deferred = DeferredWeights(module.parameters())
    with torch.autocast("cpu", torch.bfloat16), deferred.deferring():
        loss = weighted(module(value))
    with deferred.collecting():
        loss.backward()
    with torch.autocast("cpu", torch.bfloat16):  # has no effect here
        deferred.compute()
    found = gradients_of(module, value)
    for key, gradient in gradients_of(reference, same).items():
        # The same operations on the same bfloat16 values, in another order of summation.
        torch.testing.assert_close(found[key], gradient, rtol=1e-2, atol=1e-3)


def test_a_gradient_of_a_gradient_under_autocast() -> None:
    module, value = made("gradient in the loss", True)
    module, value = module.float(), value.detach().float().requires_grad_()
    reference, same = copy.deepcopy(module), value.detach().clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = weighted(reference(same))
    loss.backward()
    with torch.autocast("cpu", torch.bfloat16):
        split(module, value)
    found = gradients_of(module, value)
    for key, gradient in gradients_of(reference, same).items():
        torch.testing.assert_close(found[key], gradient, rtol=2e-2, atol=1e-2)


def test_several_micro_batches_add_up() -> None:
    module, _ = made("encoder", True)
    reference = copy.deepcopy(module)
    batches = [torch.randn(2, 5, 8, dtype=torch.double) for _ in range(3)]
    torch.stack([weighted(reference(batch)) for batch in batches]).sum().backward()
    runs = [DeferredWeights(module.parameters()) for _ in batches]
    losses = []
    for run, batch in zip(runs, batches, strict=True):
        with run.deferring():
            losses.append(weighted(module(batch)))
    for run, loss in zip(runs, losses, strict=True):
        with run.collecting():
            loss.backward()
    for run in reversed(runs):
        run.compute()
    for one, other in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, **CLOSE)


def test_micro_batches_with_different_numbers_of_products_add_up() -> None:
    layers, reference = (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double() for _ in range(2))
    reference.load_state_dict(layers.state_dict())
    batches = [(torch.randn(3, 4, dtype=torch.double), used) for used in (1, 2, 0, 1)]
    runs = [DeferredWeights(layers.parameters()) for _ in batches]
    for run, (batch, used) in zip(runs, batches, strict=True):
        weighted(reference[:used](batch.requires_grad_())).backward()
        with run.deferring():
            loss = weighted(layers[:used](batch))
        with run.collecting():
            loss.backward()
    compute_weights(runs)
    for one, other in zip(layers.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, **CLOSE)


@pytest.mark.parametrize("name", ["layers", "encoder", "in place", "twice, one after the other"])
def test_a_stage_that_is_computed_again_is_deferred_if_deferring_is_inside(name: str) -> None:
    module, value = made(name, True)
    reference, same = copy.deepcopy(module), value.detach().clone().requires_grad_()
    weighted(reference(same)).backward()
    deferred = DeferredWeights(module.parameters())

    def stage(given: Tensor) -> Tensor:
        with deferred.deferring():
            return module(given)

    loss = weighted(checkpoint(stage, value, use_reentrant=False))
    with deferred.collecting():
        loss.backward()
    assert len(finish(deferred)) == CASES[name].deferred
    for key, gradient in gradients_of(reference, same).items():
        torch.testing.assert_close(gradients_of(module, value)[key], gradient, **CLOSE)


def test_what_stays_in_memory() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3)).double()
    values: list[weakref.ref[Tensor]] = []
    for part in module:
        part.register_forward_hook(lambda _, __, output: values.append(weakref.ref(output)))
    deferred = DeferredWeights(module.parameters())
    gc.disable()
    try:
        with deferred.deferring():
            loss = module(torch.randn(5, 4, dtype=torch.double)).square().sum()
        with deferred.collecting():
            loss.backward()
        loss = loss.detach()
        storages = {factor.data_ptr() for _, factor, _ in deferred._kept}
        first, activated, last = (value() for value in values)
        assert first is None  # only GELU needs this value
        assert last is None
        assert activated is None  # the graph's tensor; the input of a product keeps its memory
        assert len(storages) == 2
        kept = [weakref.ref(tensor) for _, *pair in deferred._kept for tensor in pair]
        deferred.compute()
        assert all(tensor() is None for tensor in kept)
    finally:
        gc.enable()


def test_only_the_given_parameters_are_deferred() -> None:
    module, value = made("layers", True)
    deferred = DeferredWeights([module[3].weight])
    with deferred.deferring():
        loss = weighted(module(value))
    with deferred.collecting():
        loss.backward()
    assert [module[0].weight.grad is None, module[3].weight.grad is None] == [False, True]
    assert module[3].bias.grad is not None
    (weight,) = finish(deferred)
    assert weight is module[3].weight


def test_an_input_that_requires_grad_is_no_weight() -> None:
    left, right = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    deferred = DeferredWeights([])
    with deferred.deferring(), deferred.collecting():
        (left @ right).sum().backward()
    assert left.grad is not None
    assert right.grad is not None


def test_the_messages_of_wrong_shapes_are_pytorchs() -> None:
    layer = nn.Linear(4, 3)
    messages = []
    for context in (nullcontext(), DeferredWeights(layer.parameters()).deferring()):
        with context, pytest.raises(RuntimeError) as raised:
            layer(torch.randn(5, 5))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_a_compiled_part() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)).double()
    outer = nn.Linear(4, 3).double()
    compiled = torch.compile(inner, backend="eager", fullgraph=True)
    value = torch.randn(5, 4, dtype=torch.double)
    reference = copy.deepcopy(nn.Sequential(inner, outer))
    weighted(reference(value)).backward()
    assert split(nn.Sequential(compiled, outer), value) >= 1  # this backend runs all operators
    found = [*inner.parameters(), *outer.parameters()]
    for one, other in zip(found, reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, **CLOSE)


@pytest.mark.gpus(2)
def test_on_other_devices() -> None:
    module, value = made("encoder", True)
    reference, same = copy.deepcopy(module), value.detach().clone().requires_grad_()
    (reference(same).square().sum() + weighted(reference(same))).backward()
    for device in ("cuda:0", "cuda:1"):
        there, given = copy.deepcopy(module).to(device), value.detach().to(device).requires_grad_()
        deferred = DeferredWeights(there.parameters())

        def stage(given: Tensor, there: Any = there, deferred: Any = deferred) -> Tensor:
            with deferred.deferring():
                return there(given)

        again = checkpoint(stage, given, use_reentrant=False)
        loss = stage(given).square().sum().cpu() + weighted(again.cpu())
        with deferred.collecting():
            loss.backward()
        assert len(finish(deferred)) == 8
        for key, gradient in gradients_of(reference, same).items():
            torch.testing.assert_close(gradients_of(there, given)[key].cpu(), gradient, **CLOSE)
