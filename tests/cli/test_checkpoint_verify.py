"""`anyrig checkpoint verify` and `anyrig checkpoint diff`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from checkpoint_command import anyrig, flip, save_step
from safetensors.torch import save

pytestmark = pytest.mark.usefixtures("own_arguments")


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
