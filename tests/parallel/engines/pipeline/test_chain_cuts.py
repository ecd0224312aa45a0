"""Where a chain is cut, what its blocks hold, and what is refused."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from divided_models import (
    CASES,
    ControlFlowInParts,
    Gpt,
    GptWithProduct,
    InPlace,
    SharedBatchNorm,
    UNet,
    long_gpt,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anyrig.errors import SpreadError
from anyrig.parallel.engines.pipeline.split.chain_of import chain_of


def crossing(chain: Any, cut: int) -> int:
    """Return how many computed values cross the cut before a block."""
    earlier = set(chain.writes_of(0, cut))
    return len(earlier & set(chain.reads_of(cut, len(chain.blocks))))


def test_each_layer_of_a_deep_model_is_a_block() -> None:
    chain = chain_of(long_gpt())
    names = [block.name for block in chain.blocks]
    layers = [f"layers.h.{i}" for i in range(19)]
    # The last layer's block has the small norm, too.
    assert [n for n in names if n.startswith("layers")] == [*layers, "layers.h.19 to norm"]
    first = names.index("layers.h.0")
    assert {crossing(chain, cut) for cut in range(first, first + 20)} == {1}


def test_a_shallow_layer_is_cut_only_where_one_value_crosses() -> None:
    chain = chain_of(Gpt(2))
    first = next(i for i, b in enumerate(chain.blocks) if b.name.startswith("layers"))
    assert len(chain.blocks) - first >= 4
    assert {crossing(chain, cut) for cut in range(first, len(chain.blocks))} == {1}


def test_skip_connections_are_values_that_a_later_block_reads() -> None:
    chain = chain_of(UNet())
    assert len(chain.blocks) >= 6
    writer = {name: i for i, block in enumerate(chain.blocks) for name in block.writes}
    far = [i - writer[r] for i, b in enumerate(chain.blocks) for r in b.reads if r in writer]
    assert max(far) > 2


def test_each_block_has_parameters() -> None:
    for name in ("UNet", "long_gpt", "sequential", "ResidualMlp", "Inception"):
        chain = chain_of(CASES[name]()[0])
        assert all(next(b.module.parameters(), None) is not None for b in chain.blocks), name


def test_blocks_keep_the_names_of_the_state() -> None:
    module = Gpt()
    state: dict[str, Tensor] = {}
    for block in chain_of(module).blocks:
        state.update(block.module.state_dict(keep_vars=True))
    expected = module.state_dict(keep_vars=True)
    assert state.keys() == expected.keys()
    assert all(state[name] is expected[name] for name in expected)


def test_tied_weights_as_a_product_do_not_join_the_layers() -> None:
    chain = chain_of(GptWithProduct())
    assert len(chain.blocks) >= 8
    uses = ["words.weight" in dict(b.module.named_parameters()) for b in chain.blocks]
    assert uses == [True, *[False] * (len(uses) - 2), True]


class ChangedTranspose(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y = self.b(x.exp())
        x.T.mul_(2)
        return self.c(x) + y


def test_a_transpose_that_is_changed_keeps_its_tensor_in_one_block() -> None:
    with pytest.raises(SpreadError, match=r"'b', because a value is changed.*x[.]T[.]mul_"):
        chain_of(ChangedTranspose(), ["b"])


def test_later_changes_of_the_module_take_effect() -> None:
    module, other = Gpt().eval(), Gpt().eval()
    chain = chain_of(module)
    module.load_state_dict(other.state_dict(), assign=True)
    module.layers["h"][0].requires_grad_(False)
    tokens = CASES["Gpt"]()[1][0]
    logits, _ = chain.compute(tokens)
    assert torch.equal(logits, other(tokens)[0])
    logits.sum().backward()
    assert module.layers["h"][0].mlp.wide.weight.grad is None
    assert module.layers["h"][1].mlp.wide.weight.grad is not None
    module.to(torch.float64)
    assert chain.compute(tokens)[0].dtype is torch.float64


def test_a_module_on_the_meta_device_is_divided_alike() -> None:
    with torch.device("meta"):
        planned = chain_of(Gpt())
    made = chain_of(Gpt())
    assert [(b.name, b.reads, b.writes) for b in planned.blocks] == [
        (b.name, b.reads, b.writes) for b in made.blocks
    ]


def test_values_changed_in_place_stay_in_one_block() -> None:
    chain = chain_of(InPlace())
    first = next(b for b in chain.blocks if any(n == "a" for n, _ in b.module.named_children()))
    assert {"a", "b"} <= {name for name, _ in first.module.named_children()}


def test_a_module_with_buffers_that_is_called_twice_is_in_one_block() -> None:
    chain = chain_of(SharedBatchNorm())
    holders = [b for b in chain.blocks if next(b.module.buffers(), None) is not None]
    assert len(holders) == 1


def test_split_points_are_the_only_cuts() -> None:
    module = Gpt()
    chain = chain_of(module, ["layers.h.1", "norm"])
    assert len(chain.blocks) == 3
    assert "layers.h.1.norm1.weight" in chain.blocks[1].module.state_dict()
    assert list(chain.blocks[2].module.state_dict()) == ["norm.weight", "norm.bias", "head.weight"]


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
    assert re.search(rf"test_chain_cuts.py, {line_of(Branches, 'x.sum() > 0')}: ", text)
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


def test_layers_of_pytorchs_encoder_are_blocks_unless_it_may_use_nested_tensors() -> None:
    chain = chain_of(CASES["TorchTransformer"]()[0])
    assert len(chain.blocks) >= 6
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with pytest.raises(SpreadError, match="enable_nested_tensor=False"):
        chain_of(nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoder(layer, 3)))


def test_a_view_that_is_changed_later_keeps_its_tensor_in_one_block() -> None:
    class ChangedView(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            y = self.b(x.exp())
            view = x[:, :2]
            view.mul_(2)
            return self.c(x) + y

    with pytest.raises(SpreadError, match=r"'b', because a value is changed.*view[.]mul_"):
        chain_of(ChangedView(), ["b"])
    assert len(chain_of(ChangedView(), ["c"]).blocks) == 2


class ShapeOfInput(nn.Module):
    def __init__(self, late: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.late = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)]), late

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.a(x)
        h = self.late(x, h)
        h *= 2
        return h


def one_more(x: Tensor, h: Tensor) -> Tensor:
    samples = x.shape[0]
    samples += 1
    return h * samples


@pytest.mark.parametrize(
    "late",
    [
        one_more,
        lambda x, h: h.view(x.shape),
        lambda x, h: h.view_as(x),
        lambda x, h: h.to(x.dtype).to(x.device),
        lambda x, h: h + x.new_zeros(x.shape[0], 4),
        lambda x, h: h + torch.zeros(x.size(0), 4, device=x.device, dtype=x.dtype),
    ],
)
def test_late_uses_of_the_shape_of_an_argument_keep_nothing_together(
    late: Callable[[Tensor, Tensor], Tensor],
) -> None:
    module, x = ShapeOfInput(late), torch.randn(3, 4)
    chain = chain_of(module)
    assert len(chain.blocks) == 4
    assert torch.equal(chain.compute(x), module(x))


class ChangesArguments(ShapeOfInput):
    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.a(x)
        x.view(-1).mul_(2)
        return h + x


def test_an_argument_that_is_changed_late_is_still_in_one_block() -> None:
    assert len(chain_of(ChangesArguments(one_more)).blocks) == 1


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
