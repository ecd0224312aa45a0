"""`anyrig checkpoint show`, and paths and values that no command takes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from checkpoint_command import anyrig, flip, save_step
from safetensors.torch import save
from test_odd_values import VALUES, call

from anyrig.checkpoint.manifest import read_manifest
from anyrig.units import format_bytes

pytestmark = pytest.mark.usefixtures("own_arguments")


class TestShow:
    def test_a_series_is_listed(self, series: Path, capsys: pytest.CaptureFixture[str]) -> None:
        status, text, _ = anyrig(capsys, "show", series)
        lines = text.splitlines()
        assert status == 0
        assert lines[0] == f"{series}: 3 checkpoints"
        assert lines[1].split() == ["checkpoint", "step", "metric", "size", "saved"]
        assert lines[2].startswith("000001-step-100  100   0.9")
        assert lines[2].endswith("best")
        assert lines[4].startswith("000003-step-300  300   ?")
        assert lines[4].endswith("latest")

    def test_there_is_no_column_of_metrics_without_any(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        save_step(tmp_path, 100)
        _, text, _ = anyrig(capsys, "show", tmp_path)
        heads, row = text.splitlines()[1:]
        assert heads.split() == ["checkpoint", "step", "size", "saved"]
        assert row.startswith("000001-step-100  100   ")
        assert "?" not in row

    def test_a_damaged_one_is_marked(
        self, series: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (series / "000003-step-300" / "values.pt").unlink()
        flip(series / "000002-step-200" / "manifest.json", 40)
        _, text, _ = anyrig(capsys, "show", series)
        lines = text.splitlines()
        assert lines[2].endswith("latest, best")
        assert "damaged: " in lines[3]
        assert "manifest.json was altered" in lines[3]
        assert "values.pt is missing" in lines[4]
        _, text, _ = anyrig(capsys, "show", series, "--json")
        facts = json.loads(text)
        assert (facts["latest"], facts["best"]) == ("000001-step-100", "000001-step-100")
        assert facts["checkpoints"][0]["problem"] is None
        assert "is missing" in facts["checkpoints"][2]["problem"]

    def test_a_checkpoint_shows_its_files_and_tensors(
        self, series: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = series / "000001-step-100"
        _, text, _ = anyrig(capsys, "show", folder)
        lines = [" ".join(line.split()) for line in text.splitlines()]
        assert lines[0] == f"{folder}: anyrig checkpoint (it has a manifest)"
        assert lines[1:5] == ["number 1", "step 100", "metric 0.9", "layout one process"]
        assert "manifest.json" not in text
        assert f"values.pt {format_bytes((folder / 'values.pt').stat().st_size)}" in lines
        assert "weight 2x3 float32 model.safetensors" in lines
        assert "weight.exp_avg 2x3 float32 optimizer.safetensors" in lines
        _, text, _ = anyrig(capsys, "show", folder, "--json")
        facts = json.loads(text)
        assert (facts["number"], facts["step"], facts["metric"]) == (1, 100, 0.9)
        assert facts["files"]["values.pt"] == (folder / "values.pt").stat().st_size
        named = {(each["name"], each["file"]): each for each in facts["tensors"]}
        assert named["bias", "model.safetensors"]["shape"] == [3]

    def test_a_foreign_file_shows_what_it_is_and_why(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        torch.save({"model": {"w": torch.ones(2, dtype=torch.bfloat16)}, "epoch": 3}, "a.pt")
        _, text, _ = anyrig(capsys, "show", "a.pt")
        assert text.splitlines()[0] == (
            "a.pt: torch file (it is a zip archive, as torch.save writes; the tensors are under "
            "'model')"
        )
        assert text.splitlines()[1].split() == ["also", "epoch"]
        assert text.splitlines()[-1].split() == ["w", "2", "bfloat16"]

    def test_one_of_several_state_dicts_is_chosen(self, capsys: pytest.CaptureFixture[str]) -> None:
        torch.save({"one": {"a": torch.ones(2)}, "other": {"b": torch.ones(2)}}, "a.pt")
        status, _, error = anyrig(capsys, "show", "a.pt")
        assert (status, "--key one" in error) == (1, True)
        _, text, _ = anyrig(capsys, "show", "a.pt", "--key", "other", "--json")
        assert [each["name"] for each in json.loads(text)["tensors"]] == ["b"]

    def test_what_was_not_read_is_shown_with_the_reason(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "a.safetensors").write_bytes(save({"w": torch.ones(())}))
        (tmp_path / "model" / "config.json").write_text("{}")
        (tmp_path / "model" / "b").mkdir()
        _, text, _ = anyrig(capsys, "show", "model")
        lines = [" ".join(line.split()) for line in text.splitlines()]
        assert lines[1:3] == [
            "not read: b: a folder; give the folder itself to read it",
            "not read: config.json: it has no tensors of the model",
        ]
        size = (tmp_path / "model" / "a.safetensors").stat().st_size
        assert lines[3:] == [
            *("", "file size", f"a.safetensors {format_bytes(size)}", "config.json 2 B"),
            *("", "tensor shape type", "w scalar float32"),
        ]
        _, text, _ = anyrig(capsys, "show", "model", "--json")
        facts = json.loads(text)
        assert facts["unread"].keys() == {"b", "config.json"}
        assert facts["files"] == {"a.safetensors": size, "config.json": 2}
        assert (facts["number"], facts["step"], facts["saved_at"]) == (None, None, None)

    def test_when_a_checkpoint_was_saved_is_shown(
        self, series: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        moment = read_manifest(series / "000002-step-200").saved_at
        shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
        _, text, _ = anyrig(capsys, "show", series / "000002-step-200")
        assert f"saved   {shown}" in text.splitlines()
        size = format_bytes(read_manifest(series / "000002-step-200").bytes)
        _, text, _ = anyrig(capsys, "show", series)
        assert " ".join(text.splitlines()[3].split()) == f"000002-step-200 200 0.8 {size} {shown}"
        _, text, _ = anyrig(capsys, "show", series, "--json")
        facts = json.loads(text)
        assert facts["path"] == str(series)
        assert (facts["latest"], facts["best"]) == ("000003-step-300", "000001-step-100")
        assert [each["number"] for each in facts["checkpoints"]] == [1, 2, 3]

    def test_an_infinite_metric_is_valid_json(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = save_step(tmp_path / "runs", 1, float("inf"))
        for shown in (path, path.parent):
            _, text, _ = anyrig(capsys, "show", shown, "--json")
            facts = json.loads(text, parse_constant=pytest.fail)
            assert facts.get("checkpoints", [facts])[0]["metric"] is None

    def test_names_cannot_control_the_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        torch.save({"\x1b[31mred\n": torch.ones(1), "\ud800": torch.ones(1)}, "a.pt")
        status, text, _ = anyrig(capsys, "show", "a.pt")
        assert status == 0
        assert "\\x1b[31mred\\n" in text
        assert "\\ud800" in text


def test_paths_that_cannot_be_read_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("show", "verify", "consolidate"):
        for path in ("nothing", "a\0b", "a" * 5000):
            status, _, error = anyrig(capsys, command, path)
            assert (status, "Invalid value for" in error and "PATH" in error) == (2, True)
    assert anyrig(capsys, "diff", "nothing", "nothing")[0] == 2
    assert anyrig(capsys, "convert", "nothing", "b.pt")[0] == 2
    (tmp_path / "folder").mkdir()
    status, _, error = anyrig(capsys, "show", "folder")
    assert (status, "folder is not recognised: it has no files" in error) == (1, True)


def test_odd_values_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a": {"w": torch.ones(1)}, "b": {"w": torch.ones(1)}}, "a.pt")
    (tmp_path / "model").mkdir()
    index = tmp_path / "model" / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "w.bin"}}))
    torch.save({"w": torch.ones(1)}, tmp_path / "model" / "w.bin")
    for value in VALUES:
        status, output = call(capsys, "checkpoint", "show", f"--key={value}", "a.pt")
        assert status == 1, value[:80]
        assert "no state dict under" in output
        assert "Traceback" not in output
        words = ("consolidate", f"--output={value}", "model")
        status, output = call(capsys, "checkpoint", *words)
        assert status in (1, 2), value[:80]
        assert "Traceback" not in output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", "model"]
