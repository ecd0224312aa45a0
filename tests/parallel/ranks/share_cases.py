"""What ranks do in `test_group_ranks.py`: unequal ranks get unequal shares."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from group_of_ranks import device, rank, ranks
from loader_cases import global_order
from numbered_samples import numbers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anyrig
from anyrig.parallel.ranks.balance import Balance
from anyrig.parallel.shares.shares import Shares
from anyrig.parallel.shares.trial import Trial
from anyrig.processes.group.membership import current_context, join_group


def train(loader: Any, seconds_a_row: float, fixed: float = 0.0) -> list[int]:
    """Report steps as a model would; return how many samples this rank has of each batch."""
    rows = []
    for batch in loader:
        rows.append(len(batch[0]))
        balance = current_context().measuring
        if balance is not None:
            balance.report(rows[-1], fixed + seconds_a_row * rows[-1])
    return rows


def case_a_slow_rank_gets_fewer_rows() -> None:
    given = DataLoader(numbers(1500), 12 * ranks(), num_workers=1, drop_last=True)
    loader = anyrig.distribute(given, shares="speed")
    other = anyrig.distribute(DataLoader(numbers(600), 12 * ranks()), shares="speed")
    assert not loader.shares.held
    train(loader, 1e-3 * (2 if rank() == 0 else 1), 1e-3)
    train(loader, 1e-3 * (2 if rank() == 0 else 1), 1e-3)
    assert loader.shares.held, loader.shares
    assert "by speed" in loader.shares.reason
    assert "12 rows" not in loader.shares.reason  # only in steps before the last change
    sums = [sum(rows) for rows in loader.samples_of_batches]
    assert sums == [12 * ranks()] * len(loader)
    expected = {2: (8, 16), 3: (7, 14, 15)}[ranks()]
    found = loader.samples_of_batches[-1]
    assert all(abs(a - b) <= 1 for a, b in zip(found, expected, strict=True)), found
    assert global_order(loader) == list(range(len(loader) * 12 * ranks()))
    assert current_context().measuring is None
    assert other.shares is loader.shares  # the loader for evaluation has them, too


def case_steps_that_were_drawn_before_a_change_do_not_count() -> None:
    """Batches are drawn twelve steps ahead, as by loaders with many workers."""
    group = join_group()
    assert group is not None
    trial = Trial("speed", (None,) * ranks())
    balanced = Balance(group, Shares((1.0,) * ranks(), "to begin with", trial=trial))
    changes, rows = [], []
    for index in range(56):
        before = balanced.shares
        drawn = balanced.draw(("loader", 0, index))
        rows.append(drawn.split(24 * ranks())[rank()])
        if drawn is not before:
            changes.append(index)
        if index >= 12:
            fixed = 1e-2 * rank()
            balanced.report(rows[index - 12], fixed + 1e-3 * rows[index - 12])
    # Nine steps make a round, and an exchange comes with every fourth batch. At 24 there are twelve
    # steps, and twelve more were drawn: the next round begins at step 24, reported after batch 36.
    assert changes == [24, 48]


class Weighed(nn.Module):
    """Multiplies by a table whose rows are not samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 7)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return self.layer(x) @ table


def case_samples_are_told_where_another_tensor_has_none() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = [1 + 3 * each for each in range(ranks)]
    x, table = torch.randn(sum(rows), 3), torch.randn(7, 2)
    one = Weighed()
    net = Weighed()
    net.load_state_dict(one.state_dict())
    model = anyrig.spread(net)
    one(x, table).square().mean().backward()
    model(x.split(rows)[rank], table, samples=rows[rank]).square().mean().backward()
    for found, expected in zip(net.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-9, atol=1e-12)


def case_nothing_is_measured_unless_asked() -> None:
    loader = anyrig.distribute(DataLoader(numbers(600), 12 * ranks()))
    assert loader.shares.held
    assert loader.shares.reason == "even: the devices are alike"
    for _ in range(2):
        train(loader, 1e-3 * (2 if rank() == 0 else 1))
        assert current_context().measuring is None
        assert {count for rows in loader.samples_of_batches[:-1] for count in rows} == {12}


def case_unequal_gpus_that_are_unknown_share_evenly() -> None:
    loader = anyrig.distribute(DataLoader(numbers(40), 10))
    assert loader.shares.held
    assert loader.shares.reason.startswith("even: the devices differ, and the rates of "), loader
    list(loader)
    assert loader.samples_of_batches == [(5, 5)] * 4


class Costly(nn.Module):
    """Takes seconds and bytes per sample on a virtual GPU, and none on the host."""

    def __init__(self, seconds: float = 0.0, bytes_: int = 0) -> None:
        super().__init__()
        self.seconds, self.bytes = seconds, bytes_
        self.layer = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(int(1.41e9 * self.seconds * len(x)))
        torch.empty(self.bytes * len(x), dtype=torch.uint8, device=x.device)
        return self.layer(x)


def rows_learned(policy: str, module: nn.Module) -> tuple[int, ...]:
    """Train until the shares are held, and return each rank's samples of the last batch."""
    current_context().balances.clear()
    data = TensorDataset(torch.ones(24 * 40, 1, dtype=torch.float64))
    loader = anyrig.distribute(DataLoader(data, batch_size=24), shares=policy)
    model = anyrig.spread(module.to(device(), torch.float64))
    for (x,) in loader:
        model(x).sum().backward()
    assert loader.shares.held, loader.shares
    assert loader.shares.reason.startswith(f"by {policy}: ")
    return loader.samples_of_batches[-1]


def case_gpus_learn_shares_by_speed() -> None:
    torch.empty(2**29, dtype=torch.uint8, device=device())
    torch.cuda.empty_cache()
    peak = torch.cuda.max_memory_allocated()
    first, second = rows_learned("speed", Costly(seconds=1e-3 * (1 + rank())))
    assert abs(first - 16) <= 1
    assert first + second == 24
    assert torch.cuda.max_memory_allocated() == peak  # measuring has not reset it


def case_gpus_learn_shares_by_memory() -> None:
    """A sample takes 32 MiB. GPU 0 has 2 GiB, half of them taken; GPU 1 has 1 GiB."""
    ballast = torch.empty(2**30 if rank() == 0 else 0, dtype=torch.uint8, device=device())
    torch.cuda.reset_peak_memory_stats()
    first, second = rows_learned("memory", Costly(bytes_=2**25))
    assert abs(first - 5) <= 1  # (1 GiB + 5 rows) / 2 GiB = 19 rows / 1 GiB
    assert first + second == 24
    del ballast
