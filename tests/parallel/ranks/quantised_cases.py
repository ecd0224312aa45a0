"""What two ranks do in `test_quantised_ranks.py`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from torch import nn

import anyrig
from anyrig.errors import RankMismatchError, SpreadError
from anyrig.parallel.own_class import states_of
from anyrig.parallel.plans import Pipeline, Shards
from anyrig.processes.group.membership import join_group
from quantised_layers import LAYERS, make_quantised, quantise


def run(kinds: Sequence[str] = tuple(LAYERS)) -> None:
    """Train each kind of layer in replicas, and see other ways refused."""
    join_group()
    rank = dist.get_rank()
    _refuse_other_kinds(rank)
    for kind in kinds:
        for used in (False, True):
            _train(kind, used, rank)
        for plan, named in ((Shards(), r"Shards\(\)"), (Pipeline(), "a pipeline over ranks")):
            model = make_quantised(kind)
            before = [type(each) for each in model.parameters()]
            with pytest.raises(SpreadError, match=rf"0\.weight of a \w+ is a .*{named} would lose"):
                anyrig.spread(model, plan=plan, loss=nn.MSELoss())
            assert [type(each) for each in model.parameters()] == before


def _refuse_other_kinds(rank: int) -> None:
    """Layers that carry another number on one rank, and a layer that is plain on one rank."""
    for kind, seed in (("codes with a state", rank), ("wrapper", 0)):
        model = make_quantised(kind, seed)
        if kind == "wrapper" and rank:
            quantise(model[0], "columns")
        with pytest.raises(RankMismatchError, match=r"0\.weight is .* on rank 0 and .* on rank 1"):
            anyrig.spread(model, loss=nn.MSELoss())


def _train(kind: str, used: bool, rank: int) -> None:
    one, module = make_quantised(kind), make_quantised(kind)
    for each in states_of(module) if rank else ():  # rank 0's values are sent
        each.data.mul_(2)
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    if used and rank == 0:
        module(x)
    model = anyrig.spread(module, loss=nn.MSELoss())
    for _ in range(2):
        own = x[rank * 4 : rank * 4 + 4]
        loss = model(own, target=own)
        loss.backward()
        expected = nn.MSELoss()(one(x), x)
        expected.backward()
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(module[4].weight.grad, one[4].weight.grad)
        one.zero_grad()
        module.zero_grad()
    for mine, its in zip(one.state_dict().values(), module.state_dict().values(), strict=True):
        assert repr(mine) == repr(its)
