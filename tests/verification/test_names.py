"""The names of parameters."""

from __future__ import annotations

from torch import nn

from anyrig.verification.names import name_parameters


def test_two_models_with_the_same_names_are_told_apart_by_their_classes() -> None:
    models = nn.Linear(1, 1), nn.Bilinear(1, 1, 1, bias=False)
    named = name_parameters([one for model in models for one in model.parameters()])
    assert [one.name for one in named] == ["Linear.weight", "bias", "Bilinear.weight"]


def test_two_models_of_one_class_are_told_apart_by_numbers() -> None:
    models = nn.Linear(1, 1), nn.Linear(1, 1, bias=False)
    named = name_parameters([one for model in models for one in model.parameters()])
    assert [one.name for one in named] == ["Linear.weight", "bias", "Linear.weight (2)"]
