"""What ranks do with logical shards; see `test_three_ranks.py`."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import anyrig
from anyrig.errors import BatchError, SpreadError
from anyrig.parallel.engines.exact.logical_shards import shard_sizes
from anyrig.parallel.plans import Exact, Replicas, Shards
from anyrig.units import format_bytes

SHARDS = 12
SAMPLES, BATCH_SIZE = 42, 20  # the last batch has 2 samples, so some ranks have none
CLASSES = 5
WITHIN = (Replicas(), Shards())


class Words(nn.Module):
    """A model with a block, so that FSDP2 reduces gradients twice in a backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 7)
        self.block = nn.Sequential(nn.Linear(7, 13), nn.LayerNorm(13), nn.GELU(), nn.Linear(13, 7))
        self.last = nn.Linear(7, CLASSES)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(self.words(x).mean(1) * self.scale))


def make_loss() -> nn.CrossEntropyLoss:
    weight = torch.linspace(0.3, 1.7, CLASSES)
    return nn.CrossEntropyLoss(weight, ignore_index=3)  # divides by no sample count


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(11, (SAMPLES, 4), generator=generator)
    return TensorDataset(x, torch.randint(CLASSES, (SAMPLES,), generator=generator))


def make_loader(model: Any, data: Any = None) -> Any:
    return anyrig.distribute(DataLoader(data or make_data(), BATCH_SIZE), model)


def pair_of(within: Replicas | Shards, dtype: torch.dtype) -> tuple[Any, nn.Module]:
    """Return a model on all ranks, and rank 0's whole module on each."""
    device = anyrig.Rig.detect().lead.torch_device
    torch.manual_seed(4)
    module = Words().to(device, dtype)
    one = copy.deepcopy(module)
    if dist.get_rank():  # only rank 0's parameters count
        nn.init.zeros_(module.last.weight)
    torch.manual_seed(4 + dist.get_rank())  # and only its seed
    loss = make_loss().to(dtype)
    return anyrig.spread(module, plan=Exact(SHARDS, within), loss=loss), one


def full(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def sums_by_hand(one: nn.Module, loss: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the gradients of a batch: those of its logical shards, added from left to right."""
    summed = copy.deepcopy(loss)
    summed.reduction = "sum"
    totals: list[Tensor] = []
    count = torch.zeros((), dtype=torch.float64, device=y.device)
    for x_part, y_part in zip(*(t.split(shard_sizes(len(x), SHARDS)) for t in (x, y)), strict=True):
        if len(x_part):
            value = summed(one(x_part.clone()), y_part.clone())
            gradients = torch.autograd.grad(value, [*one.parameters()])
            totals = [
                a + b for a, b in zip(totals or [0.0] * len(gradients), gradients, strict=True)
            ]
            count += (loss.weight[y_part] * (y_part != 3)).sum().double()
    return [total * (1 / count).to(total.dtype) for total in totals]


def case_sums_over_logical_shards_have_one_order() -> None:
    for within in WITHIN:
        model, one = pair_of(within, torch.float32)
        device = next(one.parameters()).device
        loss = make_loss().to(device, torch.float32)
        for index, (x, y) in enumerate(make_loader(model)):
            here = slice(index * BATCH_SIZE, (index + 1) * BATCH_SIZE)
            whole = [each[here].to(device) for each in make_data().tensors]
            model(x, target=y).backward()
            expected = sums_by_hand(one, loss, *whole)
            for (name, found), value in zip(model.named_parameters(), expected, strict=True):
                assert torch.equal(full(found.grad), value), (within, index, name)
            model.zero_grad()


def case_logical_shards_give_the_numbers_of_one_device() -> None:
    for within in WITHIN:
        model, one = pair_of(within, torch.float64)
        device = next(one.parameters()).device
        loss = make_loss().to(device, torch.float64)
        optimizers = [torch.optim.AdamW(each.parameters(), 0.01) for each in (model, one)]
        data = [each.to(device) for each in make_data().tensors]
        for index, (x, y) in enumerate(make_loader(model)):
            here = slice(index * BATCH_SIZE, (index + 1) * BATCH_SIZE)
            value = model(x, target=y)
            expected = loss(one(data[0][here]), data[1][here])
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
            with torch.no_grad():
                assert torch.equal(model(x, target=y), value)
            (3 * value).backward()  # the gradients of two batches add up
            (3 * expected).backward()
            if index:
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        for (name, found), value in zip(model.named_parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(
                full(found), value, rtol=1e-9, atol=1e-12, msg=f"{within} {name}"
            )
        with torch.no_grad():
            assert model(data[0][:3]).shape == (3, CLASSES)


def case_logical_shards_are_gathered_in_order() -> None:
    data = TensorDataset(torch.arange(SAMPLES))
    model, _ = pair_of(Replicas(), torch.float32)
    loader = make_loader(model, data)
    own = torch.cat([batch for (batch,) in loader])
    assert anyrig.gather_over_ranks(own, loader=loader).tolist() == [*range(SAMPLES)]
    ahead: Any = anyrig.prefetch(make_loader(model, data), anyrig.Rig.detect())
    next(iter(ahead))
    state = ahead.state_dict()
    assert (state["received"], state["logical_shards"]) == (1, SHARDS)


def case_parameters_that_some_logical_shards_do_not_use() -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(1, 1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[0](x) + (self.layers[1](x) if x[0, 0] == 7 else 0)

    data = TensorDataset(torch.arange(24.0).view(24, 1), torch.zeros(24, 1))
    device = anyrig.Rig.detect().lead.torch_device
    model: Any = anyrig.spread(Sometimes().to(device), plan=Exact(SHARDS), loss=nn.MSELoss())
    x, y = next(iter(make_loader(model, data)))
    model(x, target=y).backward()
    assert model.layers[0].weight.grad is not None
    assert model.layers[1].weight.grad is None
    data = TensorDataset(data.tensors[0] + 7, data.tensors[1])
    x, y = next(iter(make_loader(model, data)))
    model(x, target=y).backward()
    assert model.layers[1].weight.grad != 0
    assert model.layers[2].weight.grad is None


def case_batches_that_are_not_divided_into_logical_shards_are_refused() -> None:
    ranks = dist.get_world_size()
    device = anyrig.Rig.detect().lead.torch_device
    model: Any = anyrig.spread(nn.Linear(1, 1).to(device), plan=Exact(2 * ranks), loss=nn.MSELoss())
    x = torch.ones(3, 1)
    with pytest.raises(SpreadError, match=r"distribute.loader, model.$"):
        model(x, target=x)
    anyrig.distribute(DataLoader(make_data(), 8), model)
    x = torch.ones(3 + 2 * dist.get_rank(), 1)
    with pytest.raises(BatchError, match=r"^rank \d was given \d of \d+ samples, but its logical"):
        model(x, target=x)


def case_what_logical_shards_do_not_take() -> None:
    ranks = dist.get_world_size()
    module, loss = nn.Linear(1, 1), nn.MSELoss()
    options: list[tuple[dict[str, Any], str]] = [
        ({"shards": ranks + 1}, f"cannot be divided equally among {ranks} ranks"),
        ({"within": Replicas(ddp={"bucket_cap_mb": 1})}, "asks for something else"),
        ({"within": Shards(offload=True)}, "asks for something else. Use Replicas() or Shards("),
    ]
    for given, message in options:
        with pytest.raises(SpreadError, match=re.escape(message)):
            anyrig.spread(module, plan=Exact(**{"shards": SHARDS, **given}), loss=loss)
    model = anyrig.spread(module, plan=Exact(SHARDS), loss=loss)

    class Numbers(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(10))

    for loader, more in (
        (DataLoader(Numbers()), {}),
        (DataLoader([1]), {"shares": "speed"}),
        (DataLoader([1]), {"divided": True}),
    ):
        with pytest.raises(BatchError, match=r"by the indices of its samples|shares are .even."):
            anyrig.distribute(loader, model, **more)


def case_logical_shards_have_a_price() -> None:
    ranks = dist.get_world_size()
    k, part = SHARDS // ranks, 1024 // ranks
    far = 1024 - part
    for within, sent, usual, memory in (
        (Replicas(), (k + 1) * far, 2 * far, 1024 + part),
        (Shards(), 3 * k * far, 3 * far, part),
    ):
        device = anyrig.Rig.detect().lead.torch_device
        module = nn.Linear(128, 1, bias=False).to(device)  # 1024 bytes in float64
        model = anyrig.spread(module, plan=Exact(SHARDS, within), loss=nn.MSELoss())
        layout = anyrig.explain(model)
        assert layout.exact is not None
        assert f"{k} logical shards per step" in layout.exact
        assert f"sends {format_bytes(sent)} per step, instead of {format_bytes(usual)}" in str(
            layout
        )
        assert f"{format_bytes(memory)} more memory" in layout.exact
