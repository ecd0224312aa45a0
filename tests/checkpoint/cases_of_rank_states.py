"""What two ranks do in `test_rank_states.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import anyrig
from anyrig.errors import CheckpointError, OtherRankError
from anyrig.parallel.plans import Plan, Replicas, Shards
from anyrig.processes.group.membership import join_group


class OwnNumbers(torch.optim.Optimizer):
    """Keeps a number, a row, a plain counter and shards for each parameter."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                mean, row = p.grad.square().mean(), p.grad.square().sum(0)
                if not state:
                    state["mean"], state["row"] = torch.zeros_like(mean), torch.zeros_like(row)
                    state["wide"] = torch.zeros_like(p, dtype=torch.float64)
                    state["step"] = torch.tensor(0.0)
                state["step"] += 1
                state["mean"].mul_(0.9).add_(mean, alpha=0.1)
                state["row"].mul_(0.9).add_(row, alpha=0.1)
                state["wide"].mul_(0.9).add_(p.grad.double())
                change = state["wide"].to(p.dtype) / (state["mean"].sqrt() + 1e-8)
                p.sub_(change / state["step"], alpha=group["lr"])


def make(layout: str, seed: int = 0) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 8, bias=False))
    if layout == "plain":
        return module, OwnNumbers(module.parameters())
    plans: dict[str, Plan] = {"shards": Shards(), "replicas": Replicas()}
    model = anyrig.spread(module, plan=plans[layout], loss=nn.MSELoss())
    return model, OwnNumbers(model.parameters())


def train(model: Any, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses = []
    for seed in steps:
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        is_plain = type(model) is nn.Sequential
        loss = nn.functional.mse_loss(model(x), x) if is_plain else model(x, target=x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run(folder: str) -> None:
    """Save and load state that is not sharded like its parameter, between all layouts."""
    join_group()
    layouts = ("shards", "replicas", "plain")
    for layout in layouts:
        model, optimizer = make(layout)
        train(model, optimizer, range(3))
        path = Path(folder) / layout
        anyrig.save(path, model=model, optimizer=optimizer, step=3)
        expected = train(model, optimizer, range(3, 6))
        for other in layouts:
            again, its_optimizer = make(other, 1)
            anyrig.load(path, model=again, optimizer=its_optimizer)
            for parameter in again.parameters():
                state = its_optimizer.state[parameter]
                kinds = {name: hasattr(each, "to_local") for name, each in state.items()}
                in_shards = other == "shards"
                assert kinds == {name: in_shards and name != "step" for name in kinds}, kinds
                assert state["wide"].dtype == torch.float64
            found = train(again, its_optimizer, range(3, 6))
            if other == layout:
                assert found == expected, (layout, other)
            torch.testing.assert_close(found, expected)
    _undo_on_all_ranks(Path(folder))


class FailsOnOneRank(nn.Linear):
    """Refuses its state on rank 1, after it was loaded."""

    fails = False

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        if self.fails and dist.get_rank() == 1:
            raise RuntimeError("this rank cannot")


def _undo_on_all_ranks(folder: Path) -> None:
    def make_failing(seed: int) -> Any:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 2), FailsOnOneRank(2, 2), nn.Linear(2, 2))

    anyrig.save(folder / "failing", model=make_failing(0))
    model = make_failing(1)
    model[1].fails = True
    before: dict[str, Tensor] = {k: v.clone() for k, v in model.state_dict().items()}
    numbers = torch.get_rng_state()
    error = CheckpointError if dist.get_rank() == 1 else OtherRankError
    with pytest.raises(error, match="this rank cannot"):
        anyrig.load(folder / "failing", model=model, random_numbers=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), numbers)
