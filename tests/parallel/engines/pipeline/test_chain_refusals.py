"""What cannot be divided into a chain is refused, with its line."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from divided_models import CASES, ControlFlowInParts, Gpt, InPlace
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anyrig.errors import SpreadError
from anyrig.parallel.engines.pipeline.split.chain_of import chain_of


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (["layer.h.1"], r"no submodule 'layer.h.1'; the nearest names are '.*layers.h.1'"),
        (["words"], "'words', because the module begins with it"),
        (["layers.h.0.mlp.act", "layers.h.9"], "no submodule 'layers.h.9'"),
    ],
)
def test_impossible_split_points_are_refused(points: list[str], message: str) -> None:
    with pytest.raises(SpreadError, match=message):
        chain_of(Gpt(), points)


def test_a_split_point_inside_code_that_cannot_be_traced_is_refused() -> None:
    with pytest.raises(SpreadError, match=r"inside 'layers.1' cannot be traced.*abs\(\)\.sum\(\)"):
        chain_of(ControlFlowInParts(), ["layers.1.linear"])
    assert len(chain_of(ControlFlowInParts(), ["layers.1", "layers.4"]).blocks) == 3


def test_a_split_point_amid_changes_in_place_is_refused() -> None:
    with pytest.raises(SpreadError, match=r"'b', because a value is changed in place.*x [+]= 1"):
        chain_of(InPlace(), ["b"])


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, flag: bool = True) -> Tensor:
        x = self.a(x)
        if x.sum() > 0:
            x = x + 1
        return self.b(x)


def line_of(kind: type, text: str) -> str:
    lines, start = inspect.getsourcelines(kind)
    return f"line {start + next(i for i, line in enumerate(lines) if text in line)}"


def test_control_flow_is_refused_with_its_line() -> None:
    with pytest.raises(SpreadError) as caught:
        chain_of(Branches())
    text = str(caught.value)
    assert re.search(rf"test_chain_refusals.py, {line_of(Branches, 'x.sum() > 0')}: ", text)
    assert "which code runs depends on a value" in text


def test_a_large_part_with_control_flow_is_refused_unless_split_points_are_named() -> None:
    whole = nn.Sequential(Branches(), nn.Linear(4, 4))
    with pytest.raises(SpreadError, match="split_points=") as caught:
        chain_of(whole)
    assert "'0' has most of the parameters" in str(caught.value)
    assert line_of(Branches, "x.sum() > 0") in str(caught.value)
    assert len(chain_of(whole, ["1"]).blocks) == 2


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, labels: Tensor | None = None, scale: float = 1.0) -> Tensor:
        if x.shape[0] > 8:
            raise ValueError("at most 8 samples")
        x = self.b(self.a(x)) * scale
        return x if labels is None else (x - labels).square().mean()


def test_arguments_that_choose_the_code_are_fixed() -> None:
    x, labels = torch.randn(3, 4), torch.randn(3, 4)
    module = Loss()
    chain = chain_of(module)
    assert torch.equal(chain.compute(x), module(x))
    with pytest.raises(SpreadError, match=r"labels=None; this call has labels=a Tensor.*example="):
        chain.compute(x, labels=labels)
    with pytest.raises(TypeError, match="missing"):
        chain.compute()
    trained = chain_of(module, example=((x,), {"labels": labels}))
    assert torch.equal(trained.compute(x, labels), module(x, labels))
    with pytest.raises(SpreadError, match=r"refuses these arguments.*x.shape"):
        chain.compute(torch.randn(9, 4))
    with pytest.raises(AssertionError, match="too many"):
        chain_of(Gpt()).compute(torch.zeros(1, 7, dtype=torch.long))


class Between(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if 3 < x.shape[0] < 8:
            raise ValueError("neither few nor many samples")
        return self.b(self.a(x))


def test_a_check_of_two_comparisons_is_refused_as_its_first_may_be_true() -> None:
    with pytest.raises(SpreadError, match=r"depends on a value.*3 < x.shape\[0\] < 8"):
        chain_of(Between())


def test_modes_that_differ_are_refused_where_they_choose_the_code() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Noisy(), Noisy()

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x + 1 if self.training else x)

    module = Two()
    chain, x = chain_of(module), torch.randn(2, 4)
    for training in (True, False):
        module.train(training)
        assert torch.equal(chain.compute(x), module(x))
    module.a.train()
    with pytest.raises(SpreadError, match="'a' is in training mode and 'b' in evaluation mode"):
        chain.compute(x)


def test_hooks_of_the_whole_module_are_refused() -> None:
    module = Gpt()
    module.register_forward_hook(lambda *_: None)
    with pytest.raises(SpreadError, match=r"Gpt has hooks.*on its submodules"):
        chain_of(module)


def test_tracing_leaves_the_module_and_torch_alone() -> None:
    module = CASES["CountsCalls"]()[0]
    functions = {name: getattr(torch, name) for name in ("arange", "tensor", "zeros")}
    before = nn.Module.__setattr__
    chain_of(module)
    with pytest.raises(SpreadError):
        chain_of(Branches())
    assert all(layer.calls == 0 and layer.seen == [] for layer in module.layers)
    assert all(m.training is True for m in module.modules())
    assert nn.Module.__setattr__ is before
    assert all(getattr(torch, name) is function for name, function in functions.items())


class HiddenCheckpoints(nn.Module):
    """Calls checkpoint through a partial, as HuggingFace's models do."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.run = functools.partial(checkpoint, use_reentrant=use_reentrant)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.run(layer, x)
        return x


class DoublingCheckpoints(HiddenCheckpoints):
    """Checkpoints a function without a module."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            h = layer(x)
            x = self.run(doubled, h)
        return x


def doubled(x: Tensor) -> Tensor:
    return x * 2


class DecoratedCheckpoints(HiddenCheckpoints):
    """Calls a function that checkpoint has decorated, which PyTorch 2.15 began to allow."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__(use_reentrant)
        decorate: Any = functools.partial(checkpoint, use_reentrant=use_reentrant)
        self.doubled = decorate()(doubled)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.doubled(layer(x))
        return x


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize(
    ("make", "line"),
    [
        (HiddenCheckpoints, r"self\.run\(layer, x\)"),
        (DoublingCheckpoints, r"self\.run\(doubled, h\)"),
        (DecoratedCheckpoints, r"self\.doubled\(layer\(x\)\)"),
    ],
)
def test_a_checkpoint_through_another_object_is_refused(
    use_reentrant: bool, make: Callable[[bool], nn.Module], line: str
) -> None:
    if make is DecoratedCheckpoints and "function=None" not in str(inspect.signature(checkpoint)):
        pytest.skip("checkpoint decorates functions from PyTorch 2.15")
    with pytest.raises(
        SpreadError, match=rf"functools\.partial; call checkpoint\(\) itself, in .*{line}"
    ):
        chain_of(make(use_reentrant))
    x = torch.ones(2, 4, requires_grad=True)
    make(use_reentrant)(x).sum().backward()  # PyTorch's functions are in place again
    assert x.grad is not None


class Counting(nn.Linear):
    """Notes each computation."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.calls: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(len(x))
        return torch.tanh(super().forward(x))


class Checkpoints(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Counting() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer.__call__, x, use_reentrant=False)
        return x


def test_a_checkpoint_of_a_bound_call_is_kept() -> None:
    module = Checkpoints()
    chain = chain_of(module)
    assert [block.name for block in chain.blocks] == ["checkpoint", "checkpoint_1", "checkpoint_2"]
    known = chain.bind((torch.ones(2, 4, requires_grad=True),), {})
    for block in chain.blocks:
        known.update(block.compute(known))
    found = chain.build(known)
    found.sum().backward()
    # Each layer computed once in the forward, and again in the backward pass.
    assert [layer.calls for layer in module.layers] == [[2, 2]] * 3
    torch.testing.assert_close(found, module(torch.ones(2, 4)))
