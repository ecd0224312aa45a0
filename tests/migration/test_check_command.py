"""`anyrig check` and `anyrig migrate`: exit status, formats and settings."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer.testing
from command_calls import call

from anyrig import __version__
from anyrig.cli.app import app
from anyrig.errors import SourceError
from anyrig.migration.flake8 import Plugin

CLEAN = "import torch\n\nx = torch.ones(3)\n"
FOUND = """\
import torch
from torch.autograd import Variable

x = Variable(torch.ones(3))
print(x.sum().data[0])
"""
FIXED = "import torch\n\nx = torch.ones(3)\nprint(x.sum().item())\n"
UNSAFE = "import torch\n\ny = torch.nn.Softmax()\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_nothing_found(project: Path) -> None:
    (project / "a.py").write_text(CLEAN)
    assert call("check") == (0, "no findings in 1 file\n")


def test_findings(project: Path) -> None:
    (project / "a.py").write_text(FOUND)
    (project / "b.py").write_text(UNSAFE)
    status, output = call("check")
    assert status == 1
    assert [line.split(" ", 1)[0] for line in output.splitlines()] == [
        "a.py:4:5:",
        "a.py:5:7:",
        "b.py:3:5:",
        "3",
    ]
    assert "a.py:4:5: ARC101 [*] `Variable` has been the tensor itself" in output
    assert "b.py:3:5: ARC113 the dimension is guessed" in output
    assert output.endswith(
        "3 findings in 2 files, 2 can be fixed with --fix, 1 more with --fix --unsafe-fixes\n"
    )


def test_fix(project: Path) -> None:
    (project / "a.py").write_text(FOUND)
    (project / "b.py").write_text(UNSAFE)
    status, output = call("check", "--fix")
    assert status == 1
    assert output.endswith("fixed 3 findings, 1 left in 1 file, 1 with --fix --unsafe-fixes\n")
    assert (project / "a.py").read_text() == FIXED
    assert (project / "b.py").read_text() == UNSAFE
    assert call("check", "--fix", "--unsafe-fixes") == (0, "fixed 1 finding\n")
    assert (project / "b.py").read_text() == UNSAFE.replace("()", "(dim=1)")


def test_diff_writes_nothing(project: Path) -> None:
    (project / "a.py").write_text(FOUND)
    for words in (("check", "--diff"), ("check", "--fix", "--diff"), ("migrate", "--diff", ".")):
        status, output = call(*words)
        assert status == 1
        assert output.startswith("--- a/a.py\n+++ b/a.py\n@@ ")
        assert "-x = Variable(torch.ones(3))\n+x = torch.ones(3)\n" not in output  # lines between
        assert "\n+print(x.sum().item())\n" in output
    assert (project / "a.py").read_text() == FOUND


def test_migrate(project: Path) -> None:
    (project / "a.py").write_text(FOUND + "torch.nn.Linear(2, 2).cuda()\n")
    (project / "b.py").write_text(UNSAFE)
    status, output = call("migrate", ".")
    assert (status, output) == (
        0,
        "rewrote a.py: fixed 3 findings\nrewrote b.py: fixed 1 finding\nfixed 4 findings\n",
    )
    assert (project / "a.py").read_text() == FIXED + "torch.nn.Linear(2, 2).cuda()\n"
    (project / "b.py").write_text(UNSAFE)
    assert call("migrate", "--safe", "b.py")[0] == 1
    assert (project / "b.py").read_text() == UNSAFE


def test_trouble_is_named_and_the_rest_is_checked(project: Path) -> None:
    (project / "a.py").write_text(FOUND)
    (project / "b.py").write_text("import torch\n\ndef f(:\n")
    (project / "c.py").write_text("# coding: no-such\nimport torch\n")
    done = typer.testing.CliRunner().invoke(app, ["check", "."])
    assert done.exit_code == 2
    assert done.stdout.count("a.py:") == 2
    assert "b.py: parses neither as Python 3 nor as Python 2: line 3: " in done.stderr
    assert "c.py: cannot be read: unknown encoding" in done.stderr


def test_json(project: Path) -> None:
    (project / "a.py").write_text(FOUND)
    (project / "b.py").write_text("import torch\ndef f(:\n")
    status, output = call("check", "--json")
    facts = json.loads(output)
    assert status == 2
    first = facts["findings"][0]
    assert first.pop("message").startswith("`Variable`")
    assert first == {
        "path": "a.py",
        "code": "ARC101",
        "line": 4,
        "column": 5,
        "end_line": 4,
        "end_column": 28,
        "fix": "safe",
    }
    assert [each["path"] for each in facts["trouble"]] == ["b.py"]
    assert json.loads(call("migrate", "--json", "a.py")[1])["fixed"] == [
        {"path": "a.py", "findings": 3}
    ]


def test_sarif(project: Path) -> None:
    (project / "a.py").write_text(FOUND)
    status, output = call("check", "--output-format", "sarif")
    log = json.loads(output)
    (run,) = log["runs"]
    assert (status, log["version"]) == (1, "2.1.0")
    result = run["results"][0]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "ARC101"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "a.py"}
    assert place["region"]["startLine"] == 4


def test_github(project: Path) -> None:
    (project / "a.py").write_text(FOUND)
    line = call("check", "--output-format", "github")[1].splitlines()[0]
    assert line.startswith(
        "::error title=ARC101,file=a.py,line=4,col=5,endLine=4,endColumn=28::ARC101 `Variable`"
    )


def test_selection(project: Path) -> None:
    (project / "a.py").write_text(FOUND)

    def codes(*words: str) -> list[str]:
        return [each["code"] for each in json.loads(call("check", "--json", *words)[1])["findings"]]

    assert codes("--select", "ARC103") == codes("--select", "arc103") == ["ARC103"]
    assert codes("--select", "ARC1", "--ignore", "ARC103") == ["ARC101"]
    assert codes("--ignore", "ARC101,ARC103") == []
    assert codes("--select", "ARC103", "--ignore", "ARC1") == ["ARC103"]  # the longer one decides
    assert call("check", "--select", "ARC9")[0] == 2


def test_settings(project: Path) -> None:
    (project / "pyproject.toml").write_text(
        '[tool.anyrig]\nignore = ["ARC101"]\nexclude = ["old", "*_generated.py"]\n'
    )
    folder = project / "src"
    for name in ("a.py", "b_generated.py", "old/c.py", ".venv/d.py", "build/e.py", "f.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FOUND)
    facts = json.loads(call("check", "--json", "src")[1])
    assert [(each["path"], each["code"]) for each in facts["findings"]] == [("src/a.py", "ARC103")]
    (project / "pyproject.toml").write_text("[tool.anyrig]\nignored = []\n")
    with pytest.raises(SourceError, match=r"tool\.anyrig has no key 'ignored'"):
        call("check")
    (project / "pyproject.toml").write_text('[tool.anyrig]\nignore = "ARC1"\n')
    with pytest.raises(SourceError, match="write a list of strings"):
        call("check")


def test_the_nearest_table_of_settings_counts(project: Path) -> None:
    (project / "src").mkdir()
    (project / "src" / "a.py").write_text(FOUND)
    (project / "pyproject.toml").write_text('[tool.anyrig]\nignore = ["ARC101"]\n')

    def codes() -> list[str]:
        return [each["code"] for each in json.loads(call("check", "--json", "src")[1])["findings"]]

    (project / "src" / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    assert codes() == ["ARC103"]  # a file without the table does not count
    (project / "src" / "pyproject.toml").write_text('[tool.anyrig]\nignore = ["ARC103"]\n')
    assert codes() == ["ARC101"]
    (project / "src" / "deep" / "er").mkdir(parents=True)
    (project / "src" / "deep" / "er" / "b.py").write_text(FOUND)
    found = json.loads(call("check", "--json", "src/deep/er")[1])["findings"]
    assert [each["code"] for each in found] == ["ARC101"]  # the nearest, two folders above


def test_wrong_arguments(project: Path) -> None:
    with pytest.raises(SourceError, match="'nowhere' is neither a file nor a folder") as caught:
        call("check", "nowhere")
    assert caught.value.exit_code == 2
    assert call("check", "--output-format", "xml")[0] == 2


def test_explain(project: Path) -> None:
    status, output = call("check", "--explain", "ARC103")
    assert status == 0
    assert output.startswith("# ARC103: index-of-a-number\n")
    assert call("check", "--explain", "index-of-a-number")[1] == output
    assert "ARC001  print-statement\n" in call("check", "--explain", "all")[1]
    with pytest.raises(SourceError, match="there is no rule 'ARC999'"):
        call("check", "--explain", "ARC999")


def test_no_torch_is_imported(project: Path) -> None:
    (project / "a.py").write_text(FOUND)
    program = (
        "import sys\nfrom anyrig.cli.app import app\n"
        "try:\n    app(['check', '.'])\nexcept SystemExit as end:\n    print(end.code)\n"
        "print(sorted({'torch', 'numpy', 'rich'} & sys.modules.keys()))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-2:] == ["1", "[]"]


def test_the_plugin_for_flake8() -> None:
    lines = FOUND.splitlines(keepends=True)
    plugin = Plugin(ast.parse(FOUND), lines, "a.py")
    assert (plugin.name, plugin.version) == ("anyrig", __version__)
    found = [(line, column, text[:6], kind) for line, column, text, kind in plugin.run()]
    assert found == [(4, 4, "ARC101", Plugin), (5, 6, "ARC103", Plugin)]
