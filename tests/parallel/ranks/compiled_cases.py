"""What ranks do in `test_distributed.py`: a compiled model."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from pair_of_models import full
from torch import Tensor, nn
from torch.nn import functional
from trained_models import WIDTH

import anyrig
from anyrig.parallel.plans import Replicas, Shards


class Layers(nn.Module):
    """Has a forward of its own, because PyTorch does not compile its own modules alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


def case_a_compiled_model_learns_like_one() -> None:
    """Compile the spread model, or the module before it is spread."""
    criterion = nn.MSELoss()
    graphs: list[int] = []

    def count(graph: Any, inputs: list[Any]) -> Any:
        graphs.append(sum(node.target is functional.linear for node in graph.graph.nodes))
        return graph

    def compiled(module: nn.Module) -> Any:
        return torch.compile(module, backend=count)

    for plan, fused, around in (
        (Replicas(), True, True),
        (Replicas(), False, False),
        (Shards(), False, True),
    ):
        one = Layers()
        net = copy.deepcopy(one)
        spread = partial(anyrig.spread, plan=plan, loss=criterion if fused else None)
        graphs.clear()
        torch.compiler.reset()
        model = compiled(spread(net)) if around else spread(compiled(net))
        ours = torch.optim.SGD(model.parameters(), 0.1)
        its = torch.optim.SGD(one.parameters(), 0.1)
        for rows in ([2, 4], [3, 2], [3, 0]):
            start, end = (0, rows[0]) if dist.get_rank() == 0 else (rows[0], sum(rows))
            x, y = torch.randn(sum(rows), WIDTH), torch.randn(sum(rows), 2)
            mine, target = x[start:end], y[start:end]
            criterion(one(x), y).backward()
            loss = model(mine, target=target) if fused else criterion(model(mine), target)
            loss.backward()
            for optimizer in (ours, its):
                optimizer.step()
                optimizer.zero_grad()
        for found, expected in zip(model.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(full(found), expected, rtol=1e-9, atol=1e-12)
        assert set(graphs) == {2}, graphs  # one graph with the module's two layers
