"""The names of parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from anyrig.verification.names import clean_name, name_parameters, unwrap


def test_two_models_with_the_same_names_are_told_apart_by_their_classes() -> None:
    models = nn.Linear(1, 1), nn.Bilinear(1, 1, 1, bias=False)
    named = name_parameters([one for model in models for one in model.parameters()])
    assert [one.name for one in named] == ["Linear.weight", "bias", "Bilinear.weight"]


def test_two_models_of_one_class_are_told_apart_by_numbers() -> None:
    models = nn.Linear(1, 1), nn.Linear(1, 1, bias=False)
    named = name_parameters([one for model in models for one in model.parameters()])
    assert [one.name for one in named] == ["Linear.weight", "bias", "Linear.weight (2)"]


@pytest.mark.parametrize(
    ("long", "short"),
    [
        ("module.0.weight", "0.weight"),
        ("_orig_mod.module.net.weight", "net.weight"),
        ("_fsdp_wrapped_module.net._checkpoint_wrapped_module.weight", "net.weight"),
        ("modules.weight", "modules.weight"),
    ],
)
def test_wrappers_do_not_change_names(long: str, short: str) -> None:
    assert clean_name(long) == short


def test_a_wrapped_model_has_the_names_and_the_class_of_the_model() -> None:
    model = nn.Linear(1, 1)
    wrapped = torch.compile(nn.DataParallel(model), backend="eager")
    assert [one.name for one in name_parameters([*model.parameters()])] == ["weight", "bias"]
    assert unwrap(wrapped) is model
    assert unwrap(model) is model


def test_a_parameter_outside_of_all_modules_has_its_number() -> None:
    model, alone = nn.Linear(1, 1), nn.Parameter(torch.ones(1))
    named = name_parameters([model.weight, alone, model.bias])
    assert [one.name for one in named] == ["weight", "parameter 1", "bias"]
    assert [one.owner for one in named] == [model, None, model]
