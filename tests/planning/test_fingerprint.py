"""Results are used again only if nothing that they depend on has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from anyrig.planning.fingerprint import fingerprint, sources_of
from anyrig.programs.program import Program


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("import torch, model\nfrom parts import head, tail\n")
    (tmp_path / "model.py").write_text("from parts.body import x\n")
    (tmp_path / "parts").mkdir()
    for name in ("__init__", "head", "body", "unused"):
        (tmp_path / "parts" / f"{name}.py").write_text("from . import body\nimport train\n")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "data.bin").write_bytes(bytes(2**20 + 1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names_of(program: Program, folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in sources_of(program)]


def test_the_sources_are_the_script_its_modules_and_named_files(folder: Path) -> None:
    modules = ["model.py", "parts/__init__.py", "parts/body.py", "parts/head.py", "train.py"]
    assert names_of(Program("train.py"), folder) == modules
    with_files = Program("train.py", ("--config=config.json", "data.bin", "a\0b", "x" * 5000))
    assert names_of(with_files, folder) == ["config.json", *modules]
    assert names_of(Program("train", is_module=True), folder) == modules
    assert names_of(Program("/bin/torchrun", ("train.py",)), folder)[-5:] == modules


def test_a_script_that_cannot_be_parsed_has_no_modules(folder: Path) -> None:
    (folder / "train.py").write_text("import (")
    assert names_of(Program("train.py"), folder) == ["train.py"]


def test_what_changes_the_hash(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program("train.py", ("config.json",))
    before = fingerprint(program, {"BATCH": "1"})

    def changes() -> bool:
        return fingerprint(program, {"BATCH": "1"}) != before

    assert not changes()
    (folder / "parts" / "unused.py").write_text("# changed")
    assert not changes()
    assert fingerprint(program, {"BATCH": "1", "SHLVL": "3", "SSH_TTY": "/dev/x"}) == before
    assert fingerprint(program, {"BATCH": "2"}) != before
    assert fingerprint(Program("train.py"), {"BATCH": "1"}) != before
    for name in ("parts/body.py", "config.json"):
        old = (folder / name).read_text()
        (folder / name).write_text(f"{old} ")
        assert changes()
        (folder / name).write_text(old)
        assert not changes()
    monkeypatch.setattr("anyrig.planning.fingerprint.__version__", "0.0")
    assert changes()


def test_a_script_in_another_folder_depends_on_the_current_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(str(folder / "train.py"))
    before, sources = fingerprint(program, {}), sources_of(program)
    monkeypatch.chdir(folder / "parts")  # it may read other files there, by relative paths
    assert sources_of(program) == sources
    assert fingerprint(program, {}) != before
