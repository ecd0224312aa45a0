"""The model of anyrig's own checkpoints, read as any other file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anyrig
from anyrig.checkpoint.any_model import is_series, open_any, read_any_model
from anyrig.checkpoint.convert import convert
from anyrig.checkpoint.describe import CheckpointDescription, describe
from anyrig.errors import CheckpointDamagedError, CheckpointError


def save(folder: Path, **more: Any) -> Path:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return anyrig.save(folder, model=model, optimizer=optimizer, **more)


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    found = read_any_model(save(tmp_path, critic=nn.Linear(1, 1)))
    assert found.tensors.keys() == {"weight", "bias"}
    assert dict(found.unread) == {
        "critic": "the model is 'model'",
        "optimizer": "the model is 'model'",
        "values.pt": "numbers, strings and states that are not tensors",
    }
    assert [*found.unread] == ["critic", "optimizer", "values.pt"]
    found = read_any_model(tmp_path, key="critic")
    assert found.tensors["weight"].shape == (1, 1)
    assert found.unread.keys() == {"model", "optimizer", "values.pt"}
    found = read_any_model(tmp_path, whole=True, key="critic")
    assert found.unread.keys() == {"values.pt"}
    assert {"weight", "model/weight", "optimizer/weight.exp_avg"} < found.tensors.keys()
    done = convert(tmp_path, tmp_path / "a.safetensors")
    assert done.left_out == ("critic", "optimizer", "values.pt")


def test_tensors_of_optimizers_that_safetensors_cannot_hold_are_read(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter])
    optimizer.state[parameter]["wide"] = torch.ones(2, dtype=torch.complex128)
    path = anyrig.save(tmp_path, optimizer={"a": optimizer})
    name = "parameter 0 of group 0.wide"
    assert read_any_model(path, whole=True).tensors[f"optimizer.a/{name}"].dtype == torch.complex128
    shown = describe(path)
    assert isinstance(shown, CheckpointDescription)
    assert [(each.name, each.dtype, each.file) for each in shown.tensors] == [
        (name, "complex128", "values.pt")
    ]


def test_a_checkpoint_without_a_model_names_what_it_has(tmp_path: Path) -> None:
    anyrig.save(tmp_path, optimizer=torch.optim.SGD([nn.Parameter(torch.ones(1))]))
    with pytest.raises(CheckpointError, match=r"has no 'model', but optimizer\. Choose one of th"):
        read_any_model(tmp_path)


def test_the_latest_whole_checkpoint_of_a_series_is_opened(tmp_path: Path) -> None:
    first, second = (save(tmp_path / "runs", step=step) for step in (1, 2))
    found = open_any(tmp_path / "runs")
    assert found is not None
    assert found.path == second
    content = (second / "model.safetensors").read_bytes()
    (second / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.warns(RuntimeWarning, match=r"safetensors was altered.*; using 000001-step-1"):
        found = open_any(tmp_path / "runs")
    assert found is not None
    assert found.path == first
    with pytest.raises(CheckpointDamagedError, match="was altered"):
        open_any(second)
    (first / "values.pt").unlink()
    with pytest.raises(CheckpointDamagedError, match=r"runs has no whole checkpoint: .*altered"):
        open_any(tmp_path / "runs")


def test_what_is_a_series(tmp_path: Path) -> None:
    path = save(tmp_path / "runs")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert is_series(tmp_path / "runs")
    for other in (path, tmp_path / "empty", tmp_path / "file", tmp_path / "none"):
        assert not is_series(other)
        assert (open_any(other) is None) == (other != path)
