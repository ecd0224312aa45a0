"""`find_blocks` finds the repeated parts of a model that are worth recomputing."""

from __future__ import annotations

import pytest
from recomputed_models import ResNet, Transformer
from torch import nn

from anyrig.memory.recompute.blocks import find_blocks, named_blocks


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 2), nn.Linear(8, 2)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Repeated modules of a small part of the layer.
        self.heads = nn.ModuleList(Head() for _ in range(4))
        self.feed_forward = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))


class Bare(nn.Module):
    """A custom layer without children."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.Linear(8, 8).weight)


class Stage(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.reduce = nn.Linear(8, 8)


class Staged(nn.Module):
    """Stages of layers, as in a Swin transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(8, 8)
        self.stages = nn.ModuleList((Stage(1), Stage(2), Stage(3)))


MODELS = {
    "transformer": (Transformer(8, (8, 8)), ["layers.0", "layers.1"]),
    "resnet": (ResNet(4), ["stage1.0", "stage1.1", "stage2.0", "stage2.1"]),
    "stages": (
        Staged(),
        ["stages.0", *(f"stages.{m}.layers.{n}" for m in (1, 2) for n in range(m + 1))],
    ),
    "one's own": (nn.Sequential(Bare(), nn.ReLU(), Bare()), ["0", "2"]),
    "single layers": (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()), []),
    "containers": (
        nn.Sequential(nn.Sequential(Bare(), Bare()), nn.Sequential(Bare())),
        ["0.0", "0.1"],
    ),
    "a single layer": (Layer(), [f"heads.{number}" for number in range(4)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_blocks(name: str) -> None:
    model, blocks = MODELS[name]
    assert [*find_blocks(model)] == blocks
    assert all(model.get_submodule(name) is block for name, block in find_blocks(model).items())


def test_a_block_is_not_inside_one_whose_name_begins_alike() -> None:
    model = nn.Module()
    model.layers = nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(12))
    assert len(named_blocks(model, [f"layers.{index}" for index in range(12)])) == 12
