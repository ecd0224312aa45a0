"""Deferring in PyTorch's own layers does what deferring in any code does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyrig.parallel.engines.pipeline.torch_layers import TorchLayers
from anyrig.parallel.engines.pipeline.weight_gradients import DeferredWeights

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def encoder(**options: Any) -> nn.Module:
    given = {"batch_first": True, "dropout": 0.0, **options}
    layer = nn.TransformerEncoderLayer(8, 2, 16, **given)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Attention(nn.MultiheadAttention):
    """Attention to itself, which is no layer of PyTorch."""

    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value, value, value)[0]


# By name: the module, and the number of products whose weights are deferred.
MODULES = {
    "linear": (lambda: nn.Linear(8, 5), 1),
    "without bias": (lambda: nn.Linear(8, 5, bias=False), 1),
    "in place": (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)), 2),
    "encoder": (encoder, 8),
    "length first": (lambda: encoder(batch_first=False), 8),
    "norm first": (lambda: encoder(norm_first=True, activation="gelu", bias=False), 8),
    "convolution": (lambda: nn.Sequential(nn.Linear(8, 8), nn.Conv1d(6, 3, 3)), 2),
    "of a user": (lambda: nn.Sequential(nn.Linear(8, 8), Attention(8, 2)), 3),
}


def prepare(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return MODULES[name][0]().double(), torch.randn(4, 6, 8, dtype=torch.float64)


def defer(layers: TorchLayers, module: nn.Module, value: Tensor) -> DeferredWeights:
    deferred = DeferredWeights(module.parameters())
    with layers.deferring(deferred):
        loss = (module(value) ** 2).sum()
    with deferred.collecting():
        loss.backward()
    return deferred


def same_gradients(module: nn.Module, value: Tensor, like: nn.Module, given: Tensor) -> None:
    torch.testing.assert_close(value.grad, given.grad, **CLOSE)
    for (name, one), other in zip(module.named_parameters(), like.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name, **CLOSE)


@pytest.mark.parametrize("needs_gradient", [True, False], ids=["later stage", "first stage"])
@pytest.mark.parametrize("name", MODULES)
def test_gradients_are_those_of_autograd(name: str, needs_gradient: bool) -> None:
    module, value = prepare(name)
    value.requires_grad_(needs_gradient)
    like, given = copy.deepcopy(module), value.detach().clone().requires_grad_(needs_gradient)
    layers = TorchLayers([module])
    for _ in range(2):
        (like(given) ** 2).sum().backward()
        deferred = defer(layers, module, value)
        assert len(deferred._kept) == MODULES[name][1]
        deferred.compute()
    same_gradients(module, value, like, given)


def test_layers_are_as_before_after_each_pass() -> None:
    module, value = prepare("encoder")
    layers, before = TorchLayers([module]), [{**each.__dict__} for each in module.modules()]
    defer(layers, module, value)
    with (
        pytest.raises(AssertionError, match="embedding dimension"),
        layers.deferring(DeferredWeights([])),
    ):
        module(value[..., :3])
    assert [each.__dict__ for each in module.modules()] == before
    assert layers._products is None


@pytest.mark.parametrize("where", ["a product", "around products"])
def test_a_replaced_forward_is_called(where: str) -> None:
    module, value = prepare("encoder")
    layers = TorchLayers([module])
    layer: Any = module.layers[0]
    changed = layer.linear1 if where == "a product" else layer
    original = changed.forward
    changed.forward = lambda *args, **kwargs: 2 * original(*args, **kwargs)
    like, given = copy.deepcopy(module), value.clone()
    for each in (module, like):
        each.requires_grad_()
    expected = (like(given) ** 2).sum()
    deferred = DeferredWeights(module.parameters())
    with layers.deferring(deferred):
        found = (module(value) ** 2).sum()
    torch.testing.assert_close(found, expected, **CLOSE)
    assert changed.forward is not original


def test_a_compiled_layer_keeps_its_forward() -> None:
    plain, compiled = nn.Linear(3, 3), nn.Linear(3, 3)
    compiled.compile(backend="eager")
    for layer, is_replaced in ((plain, True), (compiled, False)):
        deferred = DeferredWeights(layer.parameters())
        with TorchLayers([layer]).deferring(deferred):
            assert ("forward" in vars(layer)) is is_replaced


def test_hooks_of_layers_are_called() -> None:
    module, value = prepare("encoder")
    layer: Any = module.layers[0]
    called: list[str] = []
    layer.linear1.register_forward_hook(lambda *_: called.append("forward"))
    layer.self_attn.register_full_backward_hook(lambda *_: called.append("backward"))
    deferred = defer(TorchLayers([module]), module, value.requires_grad_())
    assert called == ["forward", "backward"]
    # Behind a backward hook, attention divides its weight by query, key and value.
    assert len(deferred._kept) == 7


def test_autocast() -> None:
    module, value = prepare("encoder")
    module, value = module.float(), value.float()
    like = copy.deepcopy(module)
    with torch.autocast("cpu", torch.bfloat16):
        (like(value) ** 2).sum().backward()
        deferred = defer(TorchLayers([module]), module, value)
    deferred.compute()
    for one, other in zip(module.parameters(), like.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0.05, atol=0.05)


def test_a_gradient_of_a_gradient() -> None:
    module, value = prepare("linear")
    like, given = copy.deepcopy(module), value.clone().requires_grad_()
    value.requires_grad_()
    deferred = DeferredWeights(module.parameters())
    with TorchLayers([module]).deferring(deferred):
        found = (module(value) ** 3).sum()
    for loss, at in ((found, value), ((like(given) ** 3).sum(), given)):
        (first,) = torch.autograd.grad(loss, at, create_graph=True)
        (first**2).sum().backward()
    assert not deferred._kept
    same_gradients(module, value, like, given)
