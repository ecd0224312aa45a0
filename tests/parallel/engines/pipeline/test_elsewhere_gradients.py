"""Marks for gradients that other ranks have."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anyrig.parallel.engines.pipeline.over_ranks.elsewhere import Elsewhere, put_elsewhere
from anyrig.parallel.engines.pipeline.over_ranks.elsewhere_gradients import mark_gradients

CPU = torch.device("cpu")


def test_a_mark_is_made_once_and_again_for_another_dtype() -> None:
    parameter: Any = put_elsewhere(nn.Parameter(torch.zeros(2, 3)), "weight", 1, CPU)
    marks = []
    for dtype in (torch.float32, torch.float32, torch.float64, torch.float64):
        parameter.data = parameter.data.to(dtype)
        parameter.grad = None
        mark_gradients([parameter], [])
        mark = parameter.grad
        assert isinstance(mark, Elsewhere)
        assert (mark.dtype, mark.shape, mark.label) == (dtype, (2, 3), "the gradient of weight")
        marks.append(mark)
    assert marks[0] is marks[1]
    assert marks[2] is marks[3]


def test_a_mark_is_made_again_for_another_shape() -> None:
    parameter: Any = put_elsewhere(nn.Parameter(torch.zeros(2, 3)), "weight", 1, CPU)
    mark_gradients([parameter], [])
    parameter.grad = None
    parameter.data = put_elsewhere(nn.Parameter(torch.zeros(4, 3)), "weight", 1, CPU).data
    mark_gradients([parameter], [])
    assert parameter.grad is not None
    assert parameter.grad.shape == parameter.shape == (4, 3)


def test_nothing_is_marked_without_own_gradients() -> None:
    parameter: Any = put_elsewhere(nn.Parameter(torch.zeros(2)), "weight", 1, CPU)
    own = nn.Parameter(torch.zeros(2))
    mark_gradients([parameter], [own])
    assert parameter.grad is None
    own.grad = torch.zeros(2)
    mark_gradients([parameter], [own])
    assert isinstance(parameter.grad, Elsewhere)
