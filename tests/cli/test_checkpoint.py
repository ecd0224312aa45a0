"""`anyrig checkpoint`: show, verify, diff, convert and consolidate."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.rich_utils
from safetensors.torch import save
from test_odd_values import VALUES, call

from anyrig.checkpoint.commit import commit
from anyrig.checkpoint.foreign.read import read_foreign
from anyrig.checkpoint.manifest import FileFact, Manifest, read_manifest
from anyrig.checkpoint.random_state import read_random_state
from anyrig.checkpoint.series import Series
from anyrig.checkpoint.values_file import encode_as_text, encode_values
from anyrig.cli.app import main
from anyrig.units import format_bytes


def anyrig(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Call the command in this process; return its exit status, output and error output."""
    sys.argv = ["anyrig", "checkpoint", *map(str, words)]
    try:
        main()
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    written = capsys.readouterr()
    assert "Traceback" not in written.err
    return status, written.out, written.err


@pytest.fixture(autouse=True)
def _own_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", 1000)
    monkeypatch.chdir(tmp_path)


def values_of(step: int) -> dict[str, Any]:
    """Return the values of one process without an optimizer."""
    nothing: dict[str, Any] = {name: {} for name in ("optimizers", "states")}
    random = [{"state": encode_as_text(read_random_state())}]
    return {"modules": {"model": {}}, **nothing, "given": {"step": step}, "random": random}


def save_step(series: Path, step: int, metric: float | None = None, **tensors: object) -> Path:
    weights = {"weight": torch.full((2, 3), float(step)), "bias": torch.zeros(3), **tensors}
    contents = {
        "model.safetensors": [save(weights)],
        "optimizer.safetensors": [save({"weight.exp_avg": torch.full((2, 3), step / 10)})],
        "values.pt": [encode_values(values_of(step))],
    }

    def describe(number: int, files: dict[str, FileFact]) -> Manifest:
        best = None if metric is None else "max"
        return Manifest(number, step, metric, best, "one process", 1, time.time(), {}, files)

    return commit(Series(series), contents, describe).path


@pytest.fixture
def series(tmp_path: Path) -> Path:
    for step, metric in ((100, 0.9), (200, 0.8), (300, None)):
        save_step(tmp_path / "runs", step, metric)
    return tmp_path / "runs"


def flip(path: Path, position: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


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


class TestVerify:
    def test_whole_checkpoints_are_good(
        self, series: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        status, text, _ = anyrig(capsys, "verify", series)
        assert status == 0
        assert text.splitlines() == [
            f"good  {path} (hashes of all files)" for path in sorted(series.iterdir())
        ]

    def test_an_altered_file_is_named(
        self, series: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = series / "000002-step-200" / "model.safetensors"
        flip(file)
        status, text, _ = anyrig(capsys, "verify", series)
        assert status == 1
        assert text.splitlines()[1:3] == [
            f"bad   {file.parent} (hashes of all files)",
            f"      {file} was altered: its content does not match the saved hash",
        ]
        status, text, _ = anyrig(capsys, "verify", file.parent, "--json")
        (facts,) = json.loads(text)["checkpoints"]
        assert (status, facts["good"]) == (1, False)
        assert facts["findings"][0]["path"] == str(file)
        assert anyrig(capsys, "verify", series / "000001-step-100")[0] == 0

    def test_a_path_is_printed_once(self, series: Path, capsys: pytest.CaptureFixture[str]) -> None:
        Path("a.pt").write_bytes(b"PK\3\4 cut off")
        assert anyrig(capsys, "verify", "a.pt")[1].count("a.pt") == 1
        manifest = series / "000002-step-200" / "manifest.json"
        manifest.write_text("{")
        found = anyrig(capsys, "verify", series)[1].splitlines()
        assert found[2].startswith(f"      {manifest} was altered or cut off: ")
        assert found[2].count(str(manifest)) == 1
        manifest.unlink()
        found = anyrig(capsys, "verify", series)[1].splitlines()
        assert found[2].startswith("      has no manifest.json, which a save writes last")

    def test_foreign_files_are_verified_as_far_as_their_format_allows(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        torch.save({"w": torch.ones(100)}, "a.pt")
        Path("a.safetensors").write_bytes(save({"w": torch.ones(100)}))
        assert anyrig(capsys, "verify", "a.pt")[:2] == (0, "good  a.pt (torch file: checksums)\n")
        assert anyrig(capsys, "verify", "a.safetensors")[:2] == (
            0,
            "good  a.safetensors (safetensors file: sizes; the format has no checksums)\n",
        )
        content = Path("a.pt").read_bytes()
        flip(Path("a.pt"), content.index(torch.ones(100).numpy().tobytes()))
        status, text, _ = anyrig(capsys, "verify", "a.pt")
        assert (status, "Bad CRC-32" in text) == (1, True)

    def test_the_facts_are_as_json(self, series: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (series / "000002-step-200" / "values.pt").unlink()
        _, text, _ = anyrig(capsys, "verify", series, "--json")
        facts = json.loads(text)["checkpoints"]
        assert [(each["path"], each["good"]) for each in facts] == [
            (str(series / "000001-step-100"), True),
            (str(series / "000002-step-200"), False),
            (str(series / "000003-step-300"), True),
        ]
        assert {each["method"] for each in facts} == {"hashes of all files"}
        path = str(series / "000002-step-200" / "values.pt")
        assert facts[1]["findings"] == [{"path": path, "problem": "is missing"}]
        assert facts[0]["findings"] == []


class TestDiff:
    def test_equal_checkpoints(self, series: Path, capsys: pytest.CaptureFixture[str]) -> None:
        one = series / "000001-step-100"
        assert anyrig(capsys, "diff", one, one)[:2] == (0, "3 tensors equal\n")

    def test_what_differs_is_listed(self, series: Path, capsys: pytest.CaptureFixture[str]) -> None:
        save_step(series, 400, bias=torch.zeros(4), extra=torch.zeros(1))
        status, text, _ = anyrig(capsys, "diff", series / "000001-step-100", series)
        assert status == 1
        assert [" ".join(line.split()) for line in text.splitlines()] == [
            "only in B: extra",
            "different shape: bias: 3 in A, 4 in B",
            "tensor largest difference relative elements that differ type",
            "weight 300 0.75 6 of 6 float32",
            "optimizer/weight.exp_avg 30 0.75 6 of 6 float32",
            "0 tensors equal",
        ]

    def test_other_types_and_missing_names_are_listed(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        torch.save({"w": torch.ones(2), "old": torch.ones(1)}, "a.pt")
        torch.save({"w": torch.ones(2).bfloat16()}, "b.pt")
        status, text, _ = anyrig(capsys, "diff", "a.pt", "b.pt")
        lines = [" ".join(line.split()) for line in text.splitlines()]
        assert status == 1
        assert lines[0] == "only in A: old"
        assert lines[2] == "w 0 0 0 of 2 float32 and bfloat16"
        assert lines[3] == "0 tensors equal"
        status, text, _ = anyrig(capsys, "diff", "a.pt", "b.pt", "--json")
        facts = json.loads(text)
        assert (status, facts["only_in_first"], facts["only_in_second"]) == (1, ["old"], [])
        assert facts["differences"][0]["dtypes"] == ["float32", "bfloat16"]
        torch.save({"module.w": torch.ones(2), "module.old": torch.ones(1)}, "c.pt")
        assert anyrig(capsys, "diff", "a.pt", "c.pt")[:2] == (0, "2 tensors equal\n")

    def test_a_damaged_latest_one_is_left_out_with_a_warning(
        self, series: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        flip(series / "000003-step-300" / "model.safetensors")
        with pytest.warns(RuntimeWarning, match="was altered.*using 000002-step-200"):
            status, _, _ = anyrig(capsys, "diff", series, series / "000002-step-200")
        assert status == 0

    def test_infinite_differences_are_valid_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        torch.save({"module.w": torch.tensor([float("nan")])}, "a.pt")
        torch.save({"w": torch.tensor([1.0])}, "b.pt")
        status, text, _ = anyrig(capsys, "diff", "a.pt", "b.pt", "--json")
        facts = json.loads(text, parse_constant=pytest.fail)
        assert status == 1
        assert facts["differences"][0]["largest_absolute"] == "inf"
        assert facts["differences"][0]["name"] == "module.w"


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
