"""Programs that call `torch.set_default_device`, on which tensors are made by default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

import anyrig

pytestmark = pytest.mark.gpus(2)


@pytest.fixture(params=["cuda", "cuda:0"])
def default_device(request: pytest.FixtureRequest) -> Iterator[str]:
    torch.set_default_device(request.param)
    yield request.param
    torch.set_default_device(None)


class MakesTensors(nn.Module):
    def __init__(self, names_device: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.names_device = names_device

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + torch.arange(2.0, device=x.device if self.names_device else None)


def train(seed: int, names_device: bool) -> tuple[list[Tensor], list[Any]]:
    torch.manual_seed(seed)
    net = MakesTensors(names_device).to("cuda:0")
    net.load_state_dict({"layer.weight": torch.ones(2, 3), "layer.bias": torch.zeros(2)})
    model = anyrig.spread(net, anyrig.Rig.parse("cuda:0,1"), loss=nn.MSELoss())
    x = torch.arange(30.0, device="cpu").view(10, 3)
    given = DataLoader(TensorDataset(x, x[:, :2]), batch_size=4, shuffle=True)
    loader = anyrig.prefetch(anyrig.distribute(given, seed=seed), "cuda:0")
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    order = []
    for x, y in loader:
        order += x[:, 0].tolist()
        model(x, target=y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().cpu() for p in model.parameters()], order


def test_training_is_the_same(default_device: str) -> None:
    found = train(1, names_device=False)
    torch.set_default_device(None)
    torch.testing.assert_close(found, train(1, names_device=True), rtol=0, atol=0)


def test_packed_sequences_and_synchronized_statistics(default_device: str) -> None:
    lstm = nn.LSTM(3, 2).to("cuda:0")
    with torch.device("cpu"):  # PyTorch's function fails on other devices
        packed = pack_sequence([torch.randn(n, 3) for n in (2, 4, 3)], False).to("cuda:0")
    found, _ = anyrig.spread(lstm, anyrig.Rig.parse("cuda:0,1"))(packed)
    torch.testing.assert_close(found.data, lstm(packed)[0].data)
    layer = nn.BatchNorm1d(3)
    model = anyrig.spread(
        layer, anyrig.Rig.parse("cuda:0,1"), plan=anyrig.Replicas(sync_batch_norm=True)
    )
    x = torch.randn(4, 3)
    expected = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(model(x), expected)
