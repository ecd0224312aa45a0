"""The names of parameters."""

from __future__ import annotations

import gc

from torch import Tensor, nn
from torch.fx import symbolic_trace

from anyrig.verification.names import name_parameters


def test_two_models_with_the_same_names_are_told_apart_by_their_classes() -> None:
    models = nn.Linear(1, 1), nn.Bilinear(1, 1, 1, bias=False)
    named = name_parameters([one for model in models for one in model.parameters()])
    assert [one.name for one in named] == ["Linear.weight", "bias", "Bilinear.weight"]


def test_two_models_of_one_class_are_told_apart_by_numbers() -> None:
    models = nn.Linear(1, 1), nn.Linear(1, 1, bias=False)
    named = name_parameters([one for model in models for one in model.parameters()])
    assert [one.name for one in named] == ["Linear.weight", "bias", "Linear.weight (2)"]


def test_the_parts_of_a_traced_model_keep_their_names() -> None:
    class Divided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.submod_1 = nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.submod_1(x)
            return found

    traced = symbolic_trace(Divided())
    gc.collect()
    assert [one.name for one in name_parameters([*traced.parameters()])] == ["weight", "bias"]
