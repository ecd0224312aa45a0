"""Which rules and files `anyrig check` takes, from its flags and from the project's settings."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from command_calls import call

from anyrig.errors import SourceError
from anyrig.migration.files import find_files
from anyrig.migration.flake8 import Plugin
from anyrig.migration.settings import read_settings

FOUND = """\
import torch
from torch.autograd import Variable

x = Variable(torch.ones(3))
print(x.sum().data[0])
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(FOUND)
    return tmp_path


def codes(*words: str) -> list[str]:
    return [each["code"] for each in json.loads(call("check", "--json", *words)[1])["findings"]]


@pytest.mark.parametrize(
    ("settings", "flags", "expected"),
    [
        ("", ["--select", "ARC101 ARC103"], ["ARC101", "ARC103"]),
        ("", ["--select", "ARC101", "--select", "ARC103"], ["ARC101", "ARC103"]),
        ("", ["--select", "ALL"], ["ARC101", "ARC103"]),
        ("", ["--select", "all", "--ignore", "ARC103"], ["ARC101"]),
        ("", ["--ignore", "arc101", "--ignore", "ARC103"], []),
        ('ignore = ["ARC103"]', [], ["ARC101"]),
        ('ignore = ["ARC103"]', ["--ignore", "ARC101"], []),
        ('ignore = ["ARC103"]', ["--select", "ARC1"], ["ARC101", "ARC103"]),
        ('select = ["ARC103"]', [], ["ARC103"]),
        ('select = ["ARC103"]', ["--select", "ARC101"], ["ARC101"]),
        ('select = ["ARC103"]', ["--ignore", "ARC1"], ["ARC103"]),
        ('select = ["ARC103"]', ["--ignore", "ARC103"], []),
        ('select = ["ALL"]\nignore = ["ARC1"]', [], []),
    ],
)
def test_flags_and_settings_choose_rules(
    settings: str, flags: list[str], expected: list[str], project: Path
) -> None:
    (project / "pyproject.toml").write_text(f"[tool.anyrig]\n{settings}\n")
    assert codes(*flags) == expected


@pytest.mark.parametrize("flag", ["--select", "--ignore"])
@pytest.mark.parametrize("text", ["", ",", "ARC9", "ARC101,E501"])
def test_a_flag_that_names_no_rule_is_wrong(flag: str, text: str, project: Path) -> None:
    assert call("check", flag, text)[0] == 2


def test_the_settings_are_those_of_the_first_path(project: Path) -> None:
    for name, code in (("one", "ARC101"), ("two", "ARC103")):
        (project / name).mkdir()
        (project / name / "a.py").write_text(FOUND)
        (project / name / "pyproject.toml").write_text(f'[tool.anyrig]\nignore = ["{code}"]\n')
    assert codes("one", "two") == ["ARC103", "ARC103"]
    assert codes("two/a.py", "one") == ["ARC101", "ARC101"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[tool", "cannot be read"),
        ("tool = 3\n", "cannot be read"),
        ("[tool]\nanyrig = 3\n", "tool.anyrig is 3; write a table"),
        ("[tool.anyrig]\nselect = [1]\n", "tool.anyrig.select is [1]; write a list of strings"),
        ('[tool.anyrig]\nselect = "ALL"\n', "tool.anyrig.select is 'ALL'"),
        ("[tool.anyrig]\nx = []\n", "no key 'x'; it has select, ignore, exclude"),
    ],
)
def test_wrong_settings_are_named(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(SourceError, match=re.escape(reason)) as caught:
        read_settings(tmp_path)
    assert str(tmp_path / "pyproject.toml") in str(caught.value)


@pytest.mark.parametrize("name", ["ARC103", "arc103", "index-of-a-number"])
def test_a_rule_is_explained_by_its_code_or_its_name(name: str) -> None:
    assert call("check", "--explain", name)[1].startswith("# ARC103: index-of-a-number\n")
    assert len(call("check", "--explain", "All")[1].splitlines()) > 40


LEFT_OUT = ("__pycache__", "__pypackages__", "build", "dist", "node_modules", "site-packages")


@pytest.mark.parametrize("name", [*LEFT_OUT, "venv", "env", "_build", ".hidden"])
def test_folders_that_hold_no_source_are_left_out_unless_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "a.py").touch()
    assert list(find_files([tmp_path])) == []
    assert list(find_files([tmp_path / name])) == [tmp_path / name / "a.py"]


def test_files_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    names = ["c.py", "a.py", "d/b.py", "b/z.py", "b/a.py", "b.txt", "d/e/a.py"]
    names += [f"{folder}/a.py" for folder in "rqponm"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in find_files([tmp_path])]
    assert found[:6] == ["a.py", "c.py", "b/a.py", "b/z.py", "d/b.py", "d/e/a.py"]
    assert found[6:] == [f"{folder}/a.py" for folder in "mnopqr"]
    assert list(find_files([tmp_path / "b.txt"])) == [tmp_path / "b.txt"]


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("old", ["a.py", "new/old_b.py"]),
        ("old/", ["a.py", "new/old_b.py"]),
        ("old_*", ["a.py", "old/a.py"]),
        ("new/old_b.py", ["a.py", "old/a.py"]),
        ("*/old/*", ["a.py", "new/old_b.py"]),
        ("a.py", ["new/old_b.py"]),
        ("ol", ["a.py", "new/old_b.py", "old/a.py"]),
    ],
)
def test_a_pattern_leaves_out_names_and_paths(
    pattern: str, left: list[str], tmp_path: Path
) -> None:
    for name in ("a.py", "old/a.py", "new/old_b.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in find_files([tmp_path], [pattern])]
    assert found == left
    named = list(find_files([tmp_path / "a.py"], [pattern]))
    assert named == ([tmp_path / "a.py"] if "a.py" in left else [])


def test_a_pattern_is_compared_with_a_path_as_it_is_given(project: Path) -> None:
    assert list(find_files([Path("a.py")], ["./a.py"])) == [Path("a.py")]
    (project / "src").mkdir()
    (project / "src" / "b.py").touch()
    assert list(find_files([Path("src")], ["src/b.py"])) == []


def test_other_tools_find_the_command_and_the_plugin(tmp_path: Path) -> None:
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text()
    assert "- id: anyrig-check\n" in hook
    assert "entry: anyrig check\n" in hook
    entry = '[project.entry-points."flake8.extension"]\nARC = "anyrig.migration.flake8:Plugin"\n'
    assert entry in (ROOT / "pyproject.toml").read_text()
    (tmp_path / "resnet.py").touch()
    plugin = Plugin(ast.Module([], []), ["from resnet import A\n"], str(tmp_path / "__init__.py"))
    assert [text[:6] for _, _, text, _ in plugin.run()] == ["ARC007"]
