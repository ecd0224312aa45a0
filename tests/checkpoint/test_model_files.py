"""The files of a model: names, sizes, tied parameters, and other tools that read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, load_model
from small_training import assert_same, make_model, train
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import anyrig


class TestModelFiles:
    def test_are_read_by_other_tools(self, tmp_path: Path) -> None:
        model = make_model().to(torch.bfloat16)
        path = anyrig.save(tmp_path / "a", model=model)
        assert_same(load_file(path / "model.safetensors"), dict(model.state_dict()))

    def test_tied_parameters_are_written_once(self, tmp_path: Path) -> None:
        def tied() -> nn.ModuleDict:
            model = nn.ModuleDict({"embed": nn.Embedding(50, 8), "head": nn.Linear(8, 50, False)})
            model["head"].weight = model["embed"].weight
            return model

        model, other, third = tied(), tied(), tied()
        path = anyrig.save(tmp_path / "a", model=model)
        assert (path / "model.safetensors").stat().st_size < 50 * 8 * 4 + 1000
        anyrig.load(tmp_path / "a", model=other)
        load_model(third, path / "model.safetensors")
        assert_same(model.state_dict(), other.state_dict())
        assert_same(model.state_dict(), third.state_dict())

    def test_large_models_have_several_files_and_an_index(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("anyrig.checkpoint.tensor_files.LARGEST_FILE_BYTES", 100)
        model, other = make_model(), make_model()
        path = anyrig.save(tmp_path / "a", model=model)
        index = json.loads((path / "model.safetensors.index.json").read_text())
        files = set(index["weight_map"].values())
        assert len(files) > 2
        assert index["weight_map"].keys() == model.state_dict().keys()
        anyrig.load(tmp_path / "a", model=other)
        assert_same(model.state_dict(), other.state_dict())

    def test_names_do_not_depend_on_wrappers(self, tmp_path: Path) -> None:
        model = make_model()
        compiled = torch.compile(nn.DataParallel(model), backend="eager")
        optimizer = torch.optim.Adam(compiled.parameters())
        train(model, optimizer)
        path = anyrig.save(tmp_path / "a", model=compiled, optimizer=optimizer)
        assert load_file(path / "model.safetensors").keys() == model.state_dict().keys()
        other = make_model()
        other[0] = torch.compile(other[0], backend="eager")
        other[3] = checkpoint_wrapper(other[3])
        its_optimizer = torch.optim.Adam(other.parameters())
        anyrig.load(tmp_path / "a", model=other, optimizer=its_optimizer)
        assert_same([*model.parameters()], [*other.parameters()])
        assert_same(optimizer.state_dict(), its_optimizer.state_dict())

    def test_odd_tensors_and_extra_states(self, tmp_path: Path) -> None:
        class Odd(nn.Module):
            def __init__(self, number: int) -> None:
                super().__init__()
                self.register_buffer("complex", torch.full((2,), number * 1j).to(torch.complex128))
                self.register_buffer("scalar", torch.tensor(number))
                self.register_buffer("empty", torch.empty(0, 3))
                self.register_buffer("strided", torch.arange(6.0).view(2, 3).t() * number)
                self.number = number

            def get_extra_state(self) -> dict[str, int]:
                return {"number": self.number}

            def set_extra_state(self, state: dict[str, int]) -> None:
                self.number = state["number"]

        other = Odd(1)
        anyrig.save(tmp_path / "a", model=Odd(7))
        anyrig.load(tmp_path / "a", model=other)
        assert other.number == 7
        assert_same(other.state_dict(), Odd(7).state_dict())
