"""Over 200 corrupted checkpoints of anyrig: each is refused by verify and by every reader.

The cases are the same in every run.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from anyrig.checkpoint.any_model import open_any, read_any_model
from anyrig.checkpoint.commit import commit
from anyrig.checkpoint.describe import describe
from anyrig.checkpoint.integrity import check_integrity
from anyrig.checkpoint.manifest import MANIFEST_NAME, FileFact, Manifest
from anyrig.checkpoint.series import Series
from anyrig.errors import CheckpointDamagedError, CheckpointError

FILES = ("model.safetensors", "optimizer.safetensors", "values.pt", MANIFEST_NAME)
OTHER = "another checkpoint's"
FLIPS, TRUNCATIONS = 35, 15  # of each file


def save_checkpoint(series: Path, step: int, tmp_path: Path) -> Path:
    torch.manual_seed(step)
    model, moments = torch.randn(8, 8), torch.randn(8, 8)
    torch.save({"step": step, "scheduler": {"last_epoch": step}}, tmp_path / "values.pt")
    contents = {
        "model.safetensors": [save({"weight": model, "bias": model[0].clone()})],
        "optimizer.safetensors": [save({"weight.exp_avg": moments})],
        "values.pt": [(tmp_path / "values.pt").read_bytes()],
    }

    def write_manifest(number: int, files: dict[str, FileFact]) -> Manifest:
        versions = {"torch": str(torch.__version__)}
        return Manifest(
            number, step, step / 7, "max", "one process", 1, time.time(), versions, files
        )

    return commit(Series(series), contents, write_manifest).path


def flip(number: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        choice = random.Random(f"{path.name} {number}")
        content[choice.randrange(len(content))] ^= 1 << choice.randrange(8)
        path.write_bytes(content)

    return change


def cut(number: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: random.Random(f"{path.name} {number}").randrange(len(content))])

    return change


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_other(path: Path) -> None:
    """Put the other checkpoint's file of this name in place of the file."""
    (other,) = path.parent.parent.glob("*-step-200")
    shutil.copy(other / path.name, path)


def corruptions() -> Iterator[tuple[str, str, Callable[[Path], None]]]:
    for file in FILES:
        yield from ((file, f"flip {number}", flip(number)) for number in range(FLIPS))
        yield from ((file, f"cut {number}", cut(number)) for number in range(TRUNCATIONS))
        yield file, "remove", Path.unlink
        yield file, "folder", replace_by_folder
        yield file, "empty", lambda path: path.write_bytes(b"")
        yield file, "longer", lambda path: path.write_bytes(path.read_bytes() + b"x")
        yield file, OTHER, replace_by_other
    yield (
        "model.safetensors",
        "swap with the optimizer",
        lambda path: shutil.copy(path.with_name("optimizer.safetensors"), path),
    )


CASES = list(corruptions())


def test_there_are_200_cases() -> None:
    assert len(CASES) >= 200


@pytest.mark.parametrize("file", FILES)
def test_a_corrupted_checkpoint_is_refused_by_its_file_s_name(file: str, tmp_path: Path) -> None:
    good = save_checkpoint(tmp_path / "good", 100, tmp_path)
    save_checkpoint(tmp_path / "good", 200, tmp_path)
    for number, (changed, how, change) in enumerate(CASES):
        if changed != file:
            continue
        series = tmp_path / str(number)
        shutil.copytree(tmp_path / "good", series)
        folder = series / good.name
        change(folder / file)
        # Against the manifest of another checkpoint, every other file is the wrong one.
        named = "model.safetensors" if (file, how) == (MANIFEST_NAME, OTHER) else file
        (integrity,) = check_integrity(folder)
        assert integrity.findings, how
        assert named in str(integrity.findings[0]), how
        with pytest.raises(CheckpointError, match=re.escape(named)):
            open_any(folder)
        with pytest.raises(CheckpointError):
            read_any_model(folder)
        shutil.rmtree(series)


def test_a_manifest_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "runs", 100, tmp_path)
    content = json.loads((folder / MANIFEST_NAME).read_text())
    for name in ("../../etc/passwd", "/etc/passwd", ".hidden", "a/b"):
        changed = content | {"files": {name: content["files"]["values.pt"]}}
        (folder / MANIFEST_NAME).write_text(json.dumps(changed))
        for read in (open_any, describe):
            with pytest.raises(CheckpointDamagedError, match=r"manifest\.json was altered"):
                read(folder)


def test_a_series_without_a_whole_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "runs", 100, tmp_path)
    (folder / "values.pt").unlink()
    with pytest.raises(
        CheckpointDamagedError, match=r"has no whole checkpoint: .*values\.pt is mi"
    ):
        read_any_model(tmp_path / "runs")
