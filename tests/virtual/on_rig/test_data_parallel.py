"""Stock nn.DataParallel, torch.nn.parallel and torch.cuda.comm."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.cuda import comm
from torch.nn import parallel
from torch.utils.data import DataLoader, Dataset


class RandomDataset(Dataset[Tensor]):
    def __init__(self, size: int, length: int) -> None:
        self.data = torch.randn(length, size)

    def __getitem__(self, index: int) -> Tensor:
        return self.data[index]

    def __len__(self) -> int:
        return len(self.data)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 2)
        self.seen: list[tuple[int, int]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((x.get_device(), len(x)))
        return self.fc(x)


@pytest.mark.parametrize(
    ("devices", "full", "last"),
    [(2, [15, 15], [5, 5]), (3, [10, 10, 10], [4, 4, 2]), (8, [4] * 7 + [2], [2] * 5)],
)
def test_the_splits_of_the_tutorial(devices: int, full: list[int], last: list[int]) -> None:
    seen: list[tuple[int, int]] = []
    model = Model()
    model.seen = seen
    replicas = nn.DataParallel(model, device_ids=list(range(devices))).to("cuda:0")
    splits = []
    for batch in DataLoader(RandomDataset(5, 100), batch_size=30, shuffle=True):
        seen.clear()
        output = replicas(batch.to("cuda:0"))
        assert output.device == torch.device("cuda:0")
        assert output.shape == (len(batch), 2)
        splits.append([count for _, count in sorted(seen)])
    assert splits == [full, full, full, last]


def test_gradients_are_those_of_one_device() -> None:
    torch.manual_seed(0)
    single = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()
    several = nn.DataParallel(single).to("cuda:0")
    x = torch.randn(10, 6)
    several(x.to("cuda:0")).pow(2).sum().backward()
    found = [p.grad.cpu() for p in single.parameters() if p.grad is not None]
    single.to("cpu").zero_grad()
    single(x).pow(2).sum().backward()
    expected = [p.grad for p in single.parameters() if p.grad is not None]
    torch.testing.assert_close(found, expected)


def test_the_pieces_of_data_parallel() -> None:
    module = nn.Linear(4, 2).cuda(0)
    x = torch.randn(6, 4, device="cuda:0")
    parts = parallel.scatter(x, [0, 1, 2])
    assert [part.get_device() for part in parts] == [0, 1, 2]
    replicas = parallel.replicate(module, [0, 1, 2])
    outputs = parallel.parallel_apply(replicas, parts)
    joined = parallel.gather(outputs, 0)
    torch.testing.assert_close(joined, module(x))
    torch.testing.assert_close(parallel.data_parallel(module, x, [0, 1]), module(x))


def test_comm() -> None:
    x = torch.arange(6.0, device="cuda:0").view(3, 2)
    copies = comm.broadcast(x, [0, 1])
    assert copies[0] is x
    assert copies[1].get_device() == 1
    assert torch.equal(copies[1].cpu(), x.cpu())
    chunks = comm.scatter(x, [0, 1], chunk_sizes=[1, 2])
    assert [chunk.shape[0] for chunk in chunks] == [1, 2]
    assert torch.equal(comm.gather(chunks, destination="cpu"), x.cpu())
    total = comm.reduce_add([x, x.to("cuda:1")], destination=1)
    assert total.get_device() == 1
    assert torch.equal(total.cpu(), 2 * x.cpu())
    coalesced = comm.broadcast_coalesced([x, x.half(), x + 1], [0, 2])
    assert [tensor.dtype for tensor in coalesced[1]] == [x.dtype, torch.half, x.dtype]
    assert torch.equal(coalesced[1][2].cpu(), x.cpu() + 1)
    outputs = [torch.empty(3, 1, device=f"cuda:{i}") for i in (0, 1)]
    comm.scatter(x, dim=1, out=outputs)
    assert torch.equal(comm.gather(outputs, dim=1, destination=0), x)


def test_gather_refuses_cpu_tensors() -> None:
    with pytest.raises(RuntimeError, match=r"Expected all input tensors to be CUDA tensors"):
        comm.gather([torch.ones(1)], destination=0)


def test_copies_bypass_torch_function() -> None:
    """Broadcasting must not call `__torch_function__`, which a lazy module's parameters refuse."""
    copies = comm.broadcast_coalesced([nn.LazyLinear(4).cuda().weight], [0, 1])
    assert copies[1][0].device == torch.device("cuda:1")
