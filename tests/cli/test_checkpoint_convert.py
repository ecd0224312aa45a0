"""`anyrig checkpoint convert` and `anyrig checkpoint consolidate`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from checkpoint_command import anyrig, flip
from safetensors.torch import save

from anyrig.checkpoint.foreign.read import read_foreign

pytestmark = pytest.mark.usefixtures("own_arguments")


class TestConvert:
    def test_a_wrapped_state_dict_becomes_plain(self, capsys: pytest.CaptureFixture[str]) -> None:
        torch.save({"state_dict": {"module.w": torch.ones(3)}, "epoch": 1}, "a.pt")
        status, text, _ = anyrig(capsys, "convert", "a.pt", "b.safetensors")
        assert status == 0
        assert text.splitlines() == [
            "a.pt: torch file (it is a zip archive, as torch.save writes; the tensors are under "
            "'state_dict')",
            "1 name lost a prefix that a wrapper had added",
            "not converted: epoch",
            f"wrote b.safetensors: 1 tensor, {os.stat('b.safetensors').st_size} B",  # noqa: PTH116
        ]
        assert read_foreign("b.safetensors").tensors.keys() == {"w"}
        status, _, error = anyrig(capsys, "convert", "a.pt", "b.safetensors")
        assert status == 1
        assert "anyrig: error: b.safetensors exists already" in error
        words = ("convert", "a.pt", "b.safetensors", "--force", "--keep-names")
        assert anyrig(capsys, *words)[0] == 0
        assert read_foreign("b.safetensors").tensors.keys() == {"module.w"}

    def test_the_latest_of_a_series_becomes_a_torch_file(
        self, series: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        status, text, _ = anyrig(capsys, "convert", series, "a.pt")
        assert status == 0
        assert "anyrig checkpoint (000003-step-300 has a manifest)" in text
        assert "not converted: optimizer, values.pt\n" in text
        loaded = torch.load("a.pt", weights_only=True)
        assert loaded.keys() == {"weight", "bias"}
        assert loaded["weight"][0, 0] == 300

    def test_a_damaged_checkpoint_is_not_converted(
        self, series: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        flip(series / "000001-step-100" / "model.safetensors")
        status, _, error = anyrig(capsys, "convert", series / "000001-step-100", "a.pt")
        assert (status, "was altered" in error) == (1, True)
        assert not Path("a.pt").exists()

    def test_a_pickled_module_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        torch.save(torch.nn.Linear(2, 2), "a.pt")
        status, _, error = anyrig(capsys, "convert", "a.pt", "b.pt")
        assert status == 1
        assert "its pickle imports torch.nn.modules.linear.Linear" in error

    def test_a_state_dict_is_chosen_by_its_key(self, capsys: pytest.CaptureFixture[str]) -> None:
        torch.save({"one": {"a": torch.ones(2)}, "other": {"b": torch.ones(2)}}, "a.pt")
        assert anyrig(capsys, "convert", "a.pt", "b.pth")[0] == 1
        status, text, _ = anyrig(capsys, "convert", "a.pt", "b.pth", "--key", "other")
        assert (status, "not converted: one\n" in text) == (0, True)
        assert "lost a prefix" not in text
        assert torch.load("b.pth", weights_only=True).keys() == {"b"}

    @pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt"])
    def test_every_suffix_of_torch_files_is_written(
        self, suffix: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        torch.save({"w": torch.ones(2)}, "a.pt")
        status, text, _ = anyrig(capsys, "convert", "a.pt", f"b{suffix}")
        assert (status, "not converted" in text) == (0, False)
        assert torch.load(f"b{suffix}", weights_only=True).keys() == {"w"}


class TestConsolidate:
    def test_shards_become_one_file_next_to_the_folder(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = tmp_path / "model"
        folder.mkdir()
        weight_map = {}
        for number in (1, 2):
            name = f"model-0000{number}-of-00002.safetensors"
            (folder / name).write_bytes(save({f"w{number}": torch.full((3,), float(number))}))
            weight_map[f"w{number}"] = name
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        status, text, _ = anyrig(capsys, "consolidate", "model")
        assert status == 0
        assert f"wrote {tmp_path}/model.safetensors: 2 tensors" in text
        tensors = read_foreign("model.safetensors").tensors
        assert {name: float(each[0]) for name, each in tensors.items()} == {"w1": 1, "w2": 2}
        assert anyrig(capsys, "consolidate", "model")[0] == 1
        assert anyrig(capsys, "consolidate", "model", "--force")[0] == 0
        words = ("consolidate", folder, "--output", "other.safetensors")
        assert anyrig(capsys, *words)[0] == 0
        assert Path("other.safetensors").read_bytes() == Path("model.safetensors").read_bytes()

    def test_a_model_in_one_file_is_refused(
        self, series: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        status, _, error = anyrig(capsys, "consolidate", series, "--output", "a.safetensors")
        assert (status, "in one file already" in error) == (1, True)
