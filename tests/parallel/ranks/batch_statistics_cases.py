"""What every rank does in the tests of `BatchStatisticsWarning`, in `test_distributed.py`."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import anyrig
from anyrig.parallel import BatchStatisticsWarning


class _Averaging(nn.Module):
    """Keeps a moving average of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("average", torch.zeros(3))
        self.average: Tensor

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.linear(x)
        self.average.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return h


def _train(model: nn.Module) -> None:
    numbers = torch.Generator().manual_seed(dist.get_rank())
    model(torch.randn(4, 3, generator=numbers)).sum().backward()


def case_statistics_of_a_rank_are_named() -> None:
    model = anyrig.spread(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    with pytest.warns(BatchStatisticsWarning, match=r"^1 \(BatchNorm1d\) normalizes"):
        _train(model)
    plan = anyrig.Replicas(local_statistics=True)
    model = anyrig.spread(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), plan=plan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _train(model)


def case_a_buffer_that_ranks_write_differently_is_named() -> None:
    model = anyrig.spread(_Averaging())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        _train(model)
        model.state_dict()  # the buffers have arrived
    said = [str(each.message) for each in seen if each.category is BatchStatisticsWarning]
    assert len(said) == (dist.get_rank() > 0)  # rank 0 has sent its own
    assert all("the forward writes the buffer 'average'" in each for each in said)
