"""A model whose parameters are divided among ranks: its blocks, and a step on 64 ranks.

The tests over real processes are in test_distributed.py, which starts the ranks for both.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from anyrig.parallel.engines.fsdp import find_blocks
from forked_programs import run_forked

ON_64_RANKS = """
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
import anyrig
dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=64)
net = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, device="cuda") for _ in range(4)])
model = anyrig.spread(net, plan=anyrig.Shards())
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    model(torch.ones(8, 4096)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(len(anyrig.explain(model).blocks), sum(p.to_local().nbytes for p in model.parameters()))
"""


def test_a_step_on_64_ranks_in_one_process(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ON_64_RANKS)
    rehearse = ["rehearse", "--rig", "A100-80GB", "--shape-only", str(script)]
    done = run_forked("-m", "anyrig", *rehearse)
    assert done.stdout == f"4 {4 * 4096 * 4097 * 4 // 64}\n", done.stderr


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.encoder = nn.ModuleList([Layer() for _ in range(3)])
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleDict({"all": nn.Sequential(Layer(), Layer())})
        self.small = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def test_blocks_are_layers_that_repeat_from_the_outside_in() -> None:
    layers = ["encoder.0", "encoder.1", "encoder.2"]
    assert [*find_blocks(Model())] == [*layers, "decoder.layers.all.0", "decoder.layers.all.1"]


def test_blocks_by_class() -> None:
    assert [*find_blocks(Model(), [nn.Embedding, nn.ModuleDict])] == ["embedding", "decoder.layers"]


def test_what_shares_a_parameter_with_others_is_no_block() -> None:
    model = Model()
    model.encoder[1].inner[0].weight = model.encoder[0].inner[0].weight
    model.encoder[2].inner[0].weight = model.encoder[2].inner[2].weight  # within itself
    assert next(iter(find_blocks(model))) == "encoder.2"


def test_a_layer_used_twice_is_one_block() -> None:
    layer = nn.Linear(4, 4)
    assert [*find_blocks(nn.ModuleList([layer, layer]))] == []
    assert [*find_blocks(nn.ModuleList([layer, layer, nn.Linear(4, 4)]))] == ["0", "2"]


def test_containers_are_no_blocks() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2)))
    assert find_blocks(model) == {}
    assert find_blocks(nn.Linear(2, 2)) == {}
