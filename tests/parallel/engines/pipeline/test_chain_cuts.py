"""Where a chain is cut, and what its blocks hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from divided_models import CASES, Gpt, GptWithProduct, InPlace, SharedBatchNorm, UNet, long_gpt
from torch import Tensor, nn

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
