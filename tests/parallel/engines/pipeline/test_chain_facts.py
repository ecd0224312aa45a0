"""Changes of a module after it was divided: they take effect, or are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from anyrig.errors import SpreadError
from anyrig.parallel.engines.pipeline.split.chain_of import chain_of


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 4), 0.0
        self.act: Callable[[Tensor], Tensor] = torch.relu

    def forward(self, x: Tensor) -> Tensor:
        return self.act(functional.dropout(self.linear(x), self.drop, True))


class Opaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor if x.sum() != 7 else x


class InOrder(nn.Module):
    """A container of its own kind."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(2):
            self.add_module(f"{number}", nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


class Net(nn.Module):
    offset = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.body = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
        self.opaque, self.head = Opaque(), nn.Linear(4, 2)
        self.children_of = InOrder()
        self.scale, self.steps, self.factors = 1.0, 2, [1.0, 2.0]
        self.config = SimpleNamespace(power=1)
        self.shift = torch.ones(4)
        self.unused = 1
        self.extra: Any = None

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.steps):
            for layer in self.layers:
                x = layer(x)
        x = self.body(x) ** self.config.power + self.shift
        x = self.children_of(x)
        if self.extra is not None:
            x = self.extra(x)
        out: Tensor = self.head(self.opaque(x)) * self.scale * self.factors[1] + self.offset
        return out


CHANGES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda m: setattr(m, "scale", 5.0), "'scale' of this Net was 1.0 .* is 5.0 now.*Spread the"),
    (lambda m: setattr(m, "steps", 1), "'steps' of this Net was 2 .* is 1 now"),
    (lambda m: setattr(m, "offset", 3), "'offset' of this Net was 1.0 .* is 3 now"),
    (lambda m: setattr(m.layers[2], "drop", 1.0), "'drop' of 'layers.2' was 0.0 .* is 1.0"),
    (lambda m: setattr(m.layers[2], "act", torch.tanh), "'act' of 'layers.2'"),
    (lambda m: m.factors.append(3.0), "'factors' of this Net"),
    (lambda m: setattr(m.config, "power", 2), "'config' of this Net"),
    (lambda m: setattr(m, "shift", torch.zeros(4)), "'shift' of this Net"),
    (lambda m: setattr(m, "extra", nn.Linear(4, 4)), "'extra' of this Net was None"),
    (lambda m: m.layers.append(Layer()), "layer 'layers.4' of Net was added"),
    (lambda m: m.body.append(nn.Linear(4, 4)), "layer 'body.3' of Net was added"),
    (lambda m: m.children_of.add_module("2", Layer()), r"of 'children_of' were .* are .*'2'\] now"),
    (lambda m: m.layers.__setitem__(1, Layer()), "layer 'layers.1' of Net was replaced"),
    (lambda m: setattr(m, "head", nn.Linear(4, 2)), "layer 'head' of Net was replaced"),
    (lambda m: delattr(m.layers[0], "linear"), "layer 'layers.0.linear' of Net was removed"),
    (lambda m: m.layers[1].register_forward_hook(lambda *_: None), "hooks were .* 'layers.1'"),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_changes_that_would_be_ignored_are_refused(number: int) -> None:
    change, message = CHANGES[number]
    module, x = Net(), torch.randn(3, 4)
    chain = chain_of(module)
    assert torch.equal(chain.compute(x), module(x))
    change(module)
    with pytest.raises(SpreadError, match=message):
        chain.compute(x)
    assert "__getattribute__" not in vars(nn.Module)


def test_other_changes_take_effect() -> None:
    module, x = Net(), torch.randn(3, 4)
    chain = chain_of(module)
    module.unused, module.opaque.factor = 2, 5.0
    module.eval()
    assert torch.equal(chain.compute(x), module(x))


class AsksGradients(nn.Module):
    def __init__(self, gradients: bool) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
        self.gradients = gradients

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.a(x)
        enabled = torch.is_grad_enabled() if self.gradients else torch.is_autocast_enabled("cpu")
        return h * 3 if enabled else h


@pytest.mark.parametrize(("gradients", "name"), [(True, "grad"), (False, "autocast")])
def test_questions_for_the_context_of_the_call_are_refused(gradients: bool, name: str) -> None:
    text = re.escape(f"depends on torch.is_{name}_enabled")
    with pytest.raises(SpreadError, match=text):
        chain_of(AsksGradients(gradients))
    asking = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), AsksGradients(gradients))
    chain, x = chain_of(asking, ["1"]), torch.randn(3, 4)
    with torch.no_grad():
        assert torch.equal(chain.compute(x), asking(x))
