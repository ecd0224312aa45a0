"""What ranks do in `test_group_ranks.py`: training and evaluation from divided loaders."""

from __future__ import annotations

from typing import Any

import torch
from group_of_ranks import device, rank, ranks
from numbered_samples import numbers
from same_bits import RUNS, Everything, batches, digest
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import anyrig
from anyrig.parallel.plans import Replicas, Shards
from anyrig.parallel.ranks.loaders.agreed_order import draw_alike, mix_seed
from anyrig.processes.group.board import board_of
from anyrig.processes.group.membership import current_context, join_group


def case_evaluation_exchanges_less_and_less() -> None:
    current_context().balances.clear()
    loader = anyrig.distribute(DataLoader(numbers(400), batch_size=2), shares="speed")
    group = join_group()
    assert group is not None
    before = board_of(group)._counts["shares"]
    list(loader)
    assert 3 < board_of(group)._counts["shares"] - before < 8


def case_training_is_that_of_the_global_batches() -> None:
    torch.manual_seed(1)
    rows = 6 * ranks() + 1
    data = TensorDataset(*torch.randn(rows, 7, dtype=torch.float64).split([5, 2], 1))
    module, alone = (
        nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).to(device(), torch.float64)
        for _ in range(2)
    )
    alone.load_state_dict(module.state_dict())
    criterion = nn.MSELoss()
    model = anyrig.spread(module)
    given = DataLoader(data, batch_size=2 * ranks(), shuffle=True)
    loader = anyrig.prefetch(anyrig.distribute(given, seed=3), device())
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (model, alone)]
    for _ in range(2):
        for x, y in loader:
            whole_x, whole_y = anyrig.gather_over_ranks((x, y))
            criterion(model(x), y).backward()
            criterion(alone(whole_x), whole_y).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def case_gpus_with_a_default_device() -> None:
    samples = 6 * ranks() + 1
    torch.set_default_device("cuda")
    try:
        x = torch.randn(samples, 4, device="cpu")
        given = DataLoader(TensorDataset(x, x[:, :1]), batch_size=2 * ranks(), shuffle=True)
        loader = anyrig.distribute(given, seed=3)
        model = anyrig.spread(nn.Linear(4, 1), loss=nn.MSELoss())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        seen = []
        for x, y in anyrig.prefetch(loader, device()):
            loss = model(x, target=y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(y.clone())
        anyrig.mean_over_ranks({"loss": loss.detach(), "of one": 1.0}, weight=len(y))
        found = anyrig.gather_over_ranks(torch.cat(seen), loader=loader)
        assert anyrig.gather_over_ranks({"rank": rank()}) == {"rank": [*range(ranks())]}
        dealt = DataLoader(numbers(5), sampler=DistributedSampler(numbers(5), shuffle=False))
        mine = torch.cat([y for _, y in dealt])
        whole = anyrig.gather_over_ranks(mine, loader=dealt)
        assert whole.tolist() == list(range(5))
    finally:
        torch.set_default_device(None)
    order = draw_alike(given.batch_sampler, mix_seed(3, 0))
    wanted = torch.stack([given.dataset[i][1] for batch in order for i in batch])
    assert found.tolist() == wanted.tolist()


def case_training_again_gives_the_same_bits() -> None:
    torch.set_default_dtype(torch.float32)
    x, y = (torch.cat(parts) for parts in zip(*batches("cpu"), strict=True))
    for plan in (Replicas(), Shards()):
        for loss in (None, nn.CrossEntropyLoss()):
            found = set()
            for _ in range(RUNS):
                torch.manual_seed(0)
                model = anyrig.spread(Everything().to(device()), plan=plan, loss=loss)
                optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
                loader = anyrig.distribute(DataLoader(TensorDataset(x, y), 37, shuffle=True))
                for mine, target in anyrig.prefetch(loader, device()):
                    if loss is None:
                        nn.functional.cross_entropy(model(mine), target).backward()
                    else:
                        model(mine, target=target).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                whole = [
                    getattr(each, "full_tensor", lambda x=each: x)() for each in model.parameters()
                ]
                found.add(digest([*whole, *model.buffers()]))
            assert len(found) == 1, f"{len(found)} results of {RUNS} runs: {plan}, {loss}"


class Detector(nn.Module):
    """Takes lists, and returns losses in training, like torchvision's detectors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)

    def forward(self, images: Any, targets: Any = None) -> Any:
        boxes = torch.stack([self.body(image.mean((1, 2))) for image in images])
        if targets is None:
            return [{"boxes": row} for row in boxes]
        wanted = torch.stack([target["boxes"].sum(0) for target in targets])
        return {"boxes": (boxes - wanted).square().mean(), "size": boxes.square().mean()}


def fields_of(samples: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*samples, strict=True))


def case_training_on_lists_of_samples() -> None:
    torch.manual_seed(1)
    boxes_of = [3, 3, 0, 1, 2, 1, 3]  # the boxes' shapes do not show the sample count
    data = [
        (torch.randn(3, 4 + i, 5).double(), {"boxes": torch.randn(boxes, 4).double()})
        for i, boxes in enumerate(boxes_of)
    ]
    module, alone = (Detector().to(device(), torch.float64) for _ in range(2))
    alone.load_state_dict(module.state_dict())
    model = anyrig.spread(module)
    # The last rank has one sample fewer; in the last batch, most ranks have none.
    size = 2 * ranks() - 1
    given = DataLoader(data, batch_size=size, collate_fn=fields_of)
    loader = anyrig.distribute(given, shares="even", singles=True)
    for index, (images, targets) in enumerate(loader):
        sum(model(images, targets).values()).backward()
        part = data[index * size : (index + 1) * size]
        sum(alone(*fields_of(part)).values()).backward()
    assert len(images) == (rank() < 2)
    for mine, theirs in zip(module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        assert [found["boxes"].shape for found in model([data[0][0]])] == [(4,)]
