"""Over 200 corrupted checkpoints of anyrig: each is refused by verify and by every reader.

The cases are the same in every run.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hostile_pickles import make_payloads, poison
from torch import nn

import anyrig
from anyrig.checkpoint.any_model import open_any, read_any_model
from anyrig.checkpoint.describe import describe
from anyrig.checkpoint.digest import hash_file
from anyrig.checkpoint.integrity import check_integrity
from anyrig.checkpoint.manifest import MANIFEST_NAME, FileFact, encode_manifest, read_manifest
from anyrig.errors import CheckpointDamagedError, CheckpointError, UnsafeFileError

FILES = ("model.safetensors", "optimizer.safetensors", "values.pt", MANIFEST_NAME)
OTHER = "another checkpoint's"
FLIPS, TRUNCATIONS = 35, 15  # of each file


def make_training() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(1, 8)).sum().backward()
    optimizer.step()
    return model, optimizer


def save_checkpoint(series: Path, step: int) -> Path:
    torch.manual_seed(step)
    model, optimizer = make_training()
    return anyrig.save(
        series, model=model, optimizer=optimizer, step=step, metric=step / 7, best="max", note="a"
    )


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
    (other,) = path.parent.parent.glob("*-step-100")
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
    older = save_checkpoint(tmp_path / "good", 100)
    newer = save_checkpoint(tmp_path / "good", 200)
    model, optimizer = make_training()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for number, (changed, how, change) in enumerate(CASES):
        if changed != file:
            continue
        series = tmp_path / str(number)
        shutil.copytree(tmp_path / "good", series)
        folder = series / newer.name
        change(folder / file)
        # Against the manifest of another checkpoint, every other file is the wrong one.
        named = "model.safetensors" if (file, how) == (MANIFEST_NAME, OTHER) else file
        (integrity,) = check_integrity(folder)
        assert integrity.findings, how
        assert named in str(integrity.findings[0]), how
        with pytest.raises(CheckpointError, match=re.escape(named)):
            open_any(folder)
        with pytest.raises(CheckpointError, match=re.escape(named)):
            anyrig.load(folder, model=model, optimizer=optimizer)
        torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
        shutil.rmtree(series)
    shutil.copytree(tmp_path / "good", tmp_path / "series")
    (tmp_path / "series" / newer.name / file).unlink()
    with pytest.warns(RuntimeWarning, match=re.escape(file)):
        found = anyrig.load(tmp_path / "series", model=model, optimizer=optimizer)
    assert (found.step, found.path.name) == (100, older.name)


def write_hash(folder: Path, file: str) -> None:
    """Write the manifest for a file as it is now, as whoever has altered the file could."""
    manifest = read_manifest(folder)
    fact = FileFact((folder / file).stat().st_size, hash_file(folder / file))
    changed = replace(manifest, files=manifest.files | {file: fact})
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(changed))


def test_hostile_values_with_the_right_hash_are_refused(tmp_path: Path) -> None:
    sentinel = tmp_path / "it_ran"
    folder = save_checkpoint(tmp_path / "runs", 100)
    values = (folder / "values.pt").read_bytes()
    model, optimizer = make_training()
    for payload in make_payloads(sentinel).values():
        (folder / "values.pt").write_bytes(values)
        poison(folder / "values.pt", payload)
        write_hash(folder, "values.pt")
        with pytest.raises(UnsafeFileError, match=r"values\.pt"):
            anyrig.load(folder, model=model, optimizer=optimizer)
        (integrity,) = check_integrity(folder)
        assert "values.pt" in str(integrity.findings[0])
    assert not sentinel.exists()


def test_false_files_with_the_right_hash_are_refused(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "runs", 100)
    model, optimizer = make_training()
    for file in FILES[:3]:
        content = (folder / file).read_bytes()
        for number in range(TRUNCATIONS):
            (folder / file).write_bytes(content)
            cut(number)(folder / file)
            write_hash(folder, file)
            with pytest.raises(CheckpointError, match=re.escape(file)):
                anyrig.load(folder, model=model, optimizer=optimizer)
            (integrity,) = check_integrity(folder)
            assert file in str(integrity.findings[0])
        (folder / file).write_bytes(content)
        write_hash(folder, file)
    assert not check_integrity(folder)[0].findings


def test_a_manifest_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "runs", 100)
    content = json.loads((folder / MANIFEST_NAME).read_text())
    for name in ("../../etc/passwd", "/etc/passwd", ".hidden", "a/b"):
        changed = content | {"files": {name: content["files"]["values.pt"]}}
        (folder / MANIFEST_NAME).write_text(json.dumps(changed))
        for read in (open_any, describe):
            with pytest.raises(CheckpointDamagedError, match=r"manifest\.json was altered"):
                read(folder)


def test_a_series_without_a_whole_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "runs", 100)
    (folder / "values.pt").unlink()
    with pytest.raises(
        CheckpointDamagedError, match=r"has no whole checkpoint: .*values\.pt is mi"
    ):
        read_any_model(tmp_path / "runs")
