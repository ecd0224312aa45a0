"""Measure the time of a global batch on two CPU ranks, one of which runs at half speed.

The slow rank computes everything twice. First, both ranks train concurrently on whole global
batches without communication. If a batch takes them `a` and `b` seconds, the two ranks together
could at best take ``1 / (1 / a + 1 / b)``. With `anyrig.spread` and `anyrig.distribute`, which
measures the speed of the ranks in the first steps, a batch may take 1.1 times that. Two
variants of plain DDP are measured for comparison: with even shares, which are all that it offers,
and with batches that were divided 2 to 1 by hand, which shows what DDP itself costs.

The variants take turns in blocks of a few steps, and the figures are medians. Each rank has one
thread.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

import anyrig
from workloads.figures import bar_text, write_figures

BAR = 1.1
BY_SPEED, PLAIN = "anyrig, measured shares", "plain DDP, even"
BY_HAND = "plain DDP, divided by hand"
GLOBAL_BATCH = {"transformer": 48, "convolutional": 48}
# The shares settle after about twenty steps.
WARM_UP_STEPS = 60


def train(model: str, repeats: int, block: int) -> dict[str, Any]:
    """Run the benchmark on one rank; return the figures, which cover all ranks."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
            self.head = nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.encoder(x).mean(1))

    def convolutional() -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 64), (64, 64)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.GELU(), nn.MaxPool2d(2)]
        return nn.Sequential(*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    class ComputesTwice(nn.Module):
        """A wrapper that halves the speed of a module, forward and backward.

        The second copy of the module is not registered, so it takes no part in training.
        """

        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module
            self.__dict__["copy"] = copy.deepcopy(module)

        def forward(self, x: Any) -> Any:
            output = self.module(x)
            if len(x) and output.requires_grad:
                second = self.__dict__["copy"](x).sum()
                output.register_hook(lambda gradient: second.backward())
            return output

    class Once(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Any) -> Any:
            return self.module(x)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    anyrig.barrier()
    rank, batch = dist.get_rank(), GLOBAL_BATCH[model]
    shape = (64, 128) if model == "transformer" else (3, 48, 48)
    data = TensorDataset(torch.randn(20 * batch, *shape), torch.randint(10, (20 * batch,)))
    criterion = nn.CrossEntropyLoss()

    def build() -> nn.Module:
        module = Transformer() if model == "transformer" else convolutional()
        return Once(module) if rank == 0 else ComputesTwice(module)

    def steps(module: nn.Module, loader: Any, set_epoch: Any = None) -> Callable[[int], None]:
        optimizer = torch.optim.SGD(module.parameters(), 0.01)

        def batches() -> Iterator[Any]:
            for epoch in itertools.count():
                if set_epoch is not None:
                    set_epoch(epoch)
                yield from loader

        endless = batches()

        def run(count: int) -> None:
            for x, y in itertools.islice(endless, count):
                criterion(module(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()

        return run

    sampler = DistributedSampler(data)
    halves = DataLoader(data, batch_size=batch // 2, sampler=sampler)
    first = 2 * batch // 3
    by_hand = [
        part[:first] if rank == 0 else part[first:]
        for part in torch.randperm(len(data)).view(-1, batch).tolist()
    ]
    given = DataLoader(data, batch_size=batch, shuffle=True)
    loader = anyrig.distribute(given, shares="speed")
    ways = {
        "alone": steps(build(), DataLoader(data, batch_size=batch, shuffle=True)),
        BY_SPEED: steps(anyrig.spread(build()), loader),
        PLAIN: steps(DistributedDataParallel(build()), halves, sampler.set_epoch),
        BY_HAND: steps(DistributedDataParallel(build()), DataLoader(data, batch_sampler=by_hand)),
    }
    ways[BY_SPEED](WARM_UP_STEPS)
    for way in ("alone", PLAIN, BY_HAND):
        ways[way](block)
    seconds: dict[str, list[list[float]]] = {way: [] for way in ways}
    for turn in range(repeats):
        for way in list(ways) if turn % 2 else list(reversed(ways)):
            anyrig.barrier()
            started = time.perf_counter()
            ways[way](block)
            taken = (time.perf_counter() - started) / block
            seconds[way].append(anyrig.gather_over_ranks(taken))
    alone = [statistics.median(rank) for rank in zip(*seconds["alone"], strict=True)]
    # Ratios are taken within a turn, because load on the machine slows all variants of a turn.
    allowed = [1 / sum(1 / rank for rank in turn) for turn in seconds["alone"]]
    rows = []
    for way in (BY_SPEED, PLAIN, BY_HAND):
        taken = [max(turn) for turn in seconds[way]]
        ratios = [a / b for a, b in zip(taken, allowed, strict=True)]
        rows.append(
            {
                "model": model,
                "name": way,
                "global_batch": batch,
                "step_seconds": statistics.median(taken),
                "alone_seconds": alone,
                "allowed_seconds": statistics.median(allowed),
                "ratio": statistics.median(ratios),
            }
        )
    rows[0]["rows"] = loader.samples_of_batches[-2]
    rows[2]["rows"] = [first, batch - first]
    rows[0]["explanation"] = str(loader.shares)
    dist.destroy_process_group()
    return {"rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--block", type=int, default=8, help="consecutive steps of a variant")
    parser.add_argument("--model", choices=GLOBAL_BATCH, action="append")
    options = parser.parse_args()
    rows = []
    for model in options.model or GLOBAL_BATCH:
        given = (model, options.repeats, options.block)
        rows += anyrig.launch(train, given, rig="cpu", nproc_per_device=2)["rows"]
    table = Table("model", "variant", "samples", "ms per batch", "allowed ms", "ratio", "bar")
    for row in rows:
        if row["name"] == BY_SPEED:
            row["holds"] = row["ratio"] <= BAR
        table.add_row(
            row["model"],
            row["name"],
            " + ".join(map(str, row.get("rows", [row["global_batch"] // 2] * 2))),
            f"{1e3 * row['step_seconds']:.1f}",
            f"{1e3 * row['allowed_seconds']:.1f}",
            f"{row['ratio']:.3f}",
            bar_text(str(BAR), row["holds"]) if "holds" in row else "",
        )
    Console().print(table)
    write_figures("distributed_unequal", rows)
    return 0 if all(row.get("holds", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
