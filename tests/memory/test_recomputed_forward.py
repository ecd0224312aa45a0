"""Recomputed blocks change no result, no name and no class, in copies and replicas as well."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recomputed_models import MODELS, Residual, Transformer, gradients_of
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import anyrig
from anyrig.errors import MemoryTrackingError
from anyrig.memory import recompute_blocks
from anyrig.memory.recompute.blocks import find_blocks

CUDA = pytest.param("cuda", marks=pytest.mark.gpus(1))


def small(name: str, device: str = "cpu") -> tuple[nn.Module, Tensor]:
    build, shape = MODELS[f"small {name}"]
    model = build().to(device, torch.float64)
    return model, torch.randn(shape, dtype=torch.float64, device=device)


def state_after(model: nn.Module, *args: Any, steps: int = 2, **kwargs: Any) -> dict[str, Tensor]:
    """Return the gradients and buffers after some passes, and the next random number."""
    torch.manual_seed(5)
    for _ in range(steps):
        model(*args, **kwargs).square().sum().backward()
    state = gradients_of(model) | {name: b.clone() for name, b in model.named_buffers()}
    return state | {
        "random": torch.rand(3),
        "random on device": torch.rand(3, device=args[0].device),
    }


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("name", ["transformer", "resnet"])
def test_gradients_buffers_and_random_numbers_are_equal(name: str, device: str) -> None:
    model, x = small(name, device)
    plain = copy.deepcopy(model)
    recompute_blocks(model, [*find_blocks(model)][1:])
    assert_close(state_after(model, x), state_after(plain, x))
    assert [type(module) for module in model.modules()] == [type(m) for m in plain.modules()]
    assert [*model.state_dict()] == [*plain.state_dict()]
    assert str(model) == str(plain)


class Statistics(nn.Module):
    """Changes its statistics, but not their versions, as BigGAN's batch norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x, self.mean, self.variance, training=self.training)


class Counting(nn.Module):
    """Counts its forward passes, and has every kind of buffer that a forward pass changes."""

    def __init__(self, linear: nn.Module | None = None) -> None:
        super().__init__()
        self.linear = linear or parametrizations.spectral_norm(nn.Linear(4, 4))
        self.norm = Statistics()
        self.register_buffer("state", torch.zeros(4))
        self.register_buffer("constant", torch.ones(4))
        self.calls = 0

    def forward(self, x: Tensor, *, scale: Tensor | None = None) -> Tensor:
        self.calls += 1
        x = self.linear(self.norm(x)) * (1 + self.state) * self.constant
        self.state = self.state + x.detach().mean(0)
        return x if scale is None else x * scale


def test_buffers_are_changed_once() -> None:
    model = nn.Sequential(Counting(), Counting()).double()
    plain = copy.deepcopy(model)
    recompute_blocks(model, ["0", "1"])
    x = torch.randn(8, 4, dtype=torch.float64)
    assert_close(state_after(model, x, steps=3), state_after(plain, x, steps=3))
    assert [block.calls for block in model] == [6, 6]
    assert [block.calls for block in plain] == [3, 3]


def test_a_retained_graph_is_recomputed_twice() -> None:
    model = nn.Sequential(Counting(), Counting()).double()
    plain = copy.deepcopy(model)
    recompute_blocks(model, ["0", "1"])
    x = torch.randn(8, 4, dtype=torch.float64)
    for each in (model, plain):
        loss = each(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert_close(gradients_of(model), gradients_of(plain))
    assert_close(dict(model.named_buffers()), dict(plain.named_buffers()))


def test_batch_norm_that_trains_later() -> None:
    model = nn.Sequential(*(Residual(4, 4, 1) for _ in range(2))).double()
    plain = copy.deepcopy(model)
    recompute_blocks(model, ["0", "1"])
    x = torch.randn(2, 4, 4, 4, dtype=torch.float64)
    for each in (model, plain):
        state_after(each.eval(), x)
        each.train()
    assert_close(state_after(model, x), state_after(plain, x))


def test_statistics_that_are_trained_later() -> None:
    model = nn.Sequential(Counting(), Counting()).double()
    plain = copy.deepcopy(model)
    recompute_blocks(model, ["0", "1"])
    x = torch.randn(8, 4, dtype=torch.float64)
    for each in (model, plain):
        state_after(each.eval(), x)
        each.train()
    assert_close(state_after(model, x), state_after(plain, x))


def test_batch_norm_alone_that_trains_later() -> None:
    model = nn.Sequential(*(Residual(4, 4, 1) for _ in range(2))).double()
    plain = copy.deepcopy(model)
    recompute_blocks(model, ["0", "1"])
    x = torch.randn(2, 4, 4, 4, dtype=torch.float64)
    for each in (model, plain):
        each[0].path[1].eval()
        state_after(each, x)
        each.train()
    assert_close(state_after(model, x), state_after(plain, x))


@pytest.mark.gpus(1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_and_keyword_arguments(dtype: torch.dtype) -> None:
    model = Transformer(32, (32, 64)).cuda()
    plain = copy.deepcopy(model)
    recompute_blocks(model, ["layers.0", "layers.1"])
    x, mask = torch.randn(4, 16, 8, device="cuda"), torch.randn(16, 16, device="cuda")
    with torch.autocast("cuda", dtype):
        found = state_after(model, x, mask=mask, steps=1)
        expected = state_after(plain, x, mask=mask, steps=1)
    assert_close(found, expected)


class ByName(nn.Module):
    """A block whose only tensors are keyword arguments, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Sigmoid())

    def forward(self, *, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.gpus(1)
def test_dropout_on_a_device_that_only_keyword_arguments_are_on() -> None:
    block = ByName().double().cuda()
    model = nn.Module()
    model.block = block
    plain = copy.deepcopy(block)
    recompute_blocks(model, ["block"])
    x = torch.randn(64, 8, dtype=torch.float64, device="cuda")
    for each in (block, plain):
        torch.manual_seed(3)
        each(x=x).square().sum().backward()
    assert_close(gradients_of(block), gradients_of(plain))


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


@pytest.mark.parametrize("way", COPIES)
def test_copies_recompute_with_their_own_parameters(way: str) -> None:
    model = nn.Sequential(Counting(nn.Linear(4, 4)), Counting(nn.Linear(4, 4))).double()
    recompute_blocks(model, ["0"])
    x = torch.randn(8, 4, dtype=torch.float64)
    model(x).sum().backward()
    model.zero_grad()
    found = COPIES[way](model)
    plain = copy.deepcopy(model)
    recompute_blocks(plain, [])
    expected = state_after(plain, x)
    before = [block.calls for block in model]
    assert_close(state_after(found, x), expected)
    assert [block.calls for block in model] == before
    assert found[0].calls == before[0] + 4
    recompute_blocks(found, [])
    found(x).sum().backward()
    assert found[0].calls == before[0] + 5
    assert "forward" not in vars(found[0])
    assert not found[0]._forward_pre_hooks
    assert "forward" in vars(model[0])


@pytest.mark.gpus(2)
@pytest.mark.parametrize("spread", [nn.DataParallel, anyrig.spread, anyrig.DataParallel])
def test_replicas_recompute_with_their_own_parameters(spread: Callable[..., nn.Module]) -> None:
    model = Transformer(32, (32, 64, 32), dropout=0.0).to("cuda:0", torch.float64)
    plain = copy.deepcopy(model)
    recompute_blocks(model, ["layers.0", "layers.2"])
    x = torch.randn(6, 16, 8, dtype=torch.float64, device="cuda:0")
    calls = []

    def count(module: nn.Module, inputs: Any) -> None:
        calls.append(inputs[0].device.index)

    for layer in model.layers:
        layer.norm.register_forward_pre_hook(count)
    several = spread(model, [0, 1])
    for each in (several, plain):
        for _ in range(2):
            each(x).square().sum().backward()
    assert_close(gradients_of(model), gradients_of(plain))
    assert sorted(calls) == [0] * 10 + [1] * 10


def test_a_compiled_model_recomputes_without_graph_breaks() -> None:
    # Backends that do not use AOTAutograd draw other dropout in the recomputation.
    model = Transformer(32, (32, 64, 32), dropout=0.0)
    x = torch.randn(4, 16, 8)
    plain = copy.deepcopy(model)
    recompute_blocks(model, ["layers.0", "layers.2"])
    operators = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        operators.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for each in (compiled, plain):
        each(x).square().sum().backward()
    assert_close(gradients_of(model), gradients_of(plain))
    assert operators.count("tag_activation_checkpoint") == 2


# PyTorch hides it while it compiles, unless warnings are errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_model_with_batch_norm() -> None:
    model, x = small("resnet")
    plain = copy.deepcopy(model)
    recompute_blocks(model, ["stage1.0", "stage2.0"])
    compiled = torch.compile(model, backend="eager")
    for each in (compiled, plain):
        for _ in range(2):
            each(x).square().sum().backward()
    assert_close(gradients_of(model), gradients_of(plain))
    assert_close(dict(model.named_buffers()), dict(plain.named_buffers()))


def test_a_model_is_freed_when_it_is_deleted() -> None:
    model, x = small("transformer")
    recompute_blocks(model, [*find_blocks(model)])
    model(x).sum().backward()
    reference = weakref.ref(model.layers[0])
    gc.collect()
    gc.disable()
    try:
        del model
        assert reference() is None
    finally:
        gc.enable()


def test_an_interrupted_forward_leaves_nothing_behind() -> None:
    model = nn.Sequential(Counting(), Counting()).double()
    recompute_blocks(model, ["0"])
    x = torch.randn(8, 4, dtype=torch.float64)

    def interrupt(module: nn.Module, inputs: Any) -> None:
        raise KeyboardInterrupt

    handle = model[0].linear.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(x)
    handle.remove()
    plain = copy.deepcopy(model)
    recompute_blocks(plain, [])
    weight = torch.ones(3, requires_grad=True)
    weight.exp().sum().backward()  # would be packed by a checkpoint that was never left
    assert_close(state_after(model, x), state_after(plain, x))


def test_without_gradients_nothing_is_repeated() -> None:
    model = nn.Sequential(Counting(), Counting())
    recompute_blocks(model, ["0"])
    with torch.no_grad():
        model(torch.randn(8, 4))
    with torch.inference_mode():
        model(torch.randn(8, 4))
    assert model[0].calls == 2


def test_a_forward_of_the_instance_is_kept() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    forward = lambda x: x.exp().sin()  # noqa: E731
    model[0].forward = forward
    recompute_blocks(model, ["0"])
    x = torch.randn(3, 4, requires_grad=True)
    assert torch.equal(model[0](x), x.exp().sin())
    model[0](x).sum().backward()
    recompute_blocks(model, [])
    assert model[0].forward is forward


def test_only_the_named_blocks_recompute() -> None:
    model = nn.Sequential(Counting(), Counting(), Counting())
    x = torch.randn(8, 4)
    for names in (["0", "1"], ["1", "2", "1"], []):
        before = [block.calls for block in model]
        recompute_blocks(model, names)
        model(x).sum().backward()
        calls = [block.calls - old for block, old in zip(model, before, strict=True)]
        assert calls == [2 if str(number) in names else 1 for number in range(3)]
    assert all(not block._forward_pre_hooks for block in model)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["layers.7"], r"no module 'layers\.7'.*such as 'layers\.0', 'layers\.1'"),
        (["layers.0.norm", "layers.0"], r"'layers\.0\.norm' is inside 'layers\.0'"),
        (["layers"], "'layers' is a ModuleList, which is never called"),
        (["layers.0", ""], r"'layers\.0' is inside ''"),
    ],
)
def test_names_that_cannot_be_recomputed(names: list[str], words: str) -> None:
    model, _ = small("transformer")
    with pytest.raises(MemoryTrackingError, match=words):
        recompute_blocks(model, names)
    assert all("forward" not in vars(module) for module in model.modules())
