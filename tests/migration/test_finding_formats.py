"""How `anyrig check` and `anyrig migrate` print findings, changes and troubles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_calls import call

from anyrig.migration.rules.every import RULES

SAFE = "import torch\nx = torch.ones(3)\nprint((x.sum() % 2)[0])\n"
UNSAFE = "import torch\ny = torch.nn.Softmax()\n"
BY_HAND = "import torch\ny = torch.gels(a, b)\n"
BROKEN = "import torch\ndef f(:\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sarif(*words: str) -> dict[str, object]:
    (run,) = json.loads(call("check", "--output-format", "sarif", *words)[1])["runs"]
    found: dict[str, object] = run
    return found


def test_an_annotation_of_github_escapes_what_would_end_it(project: Path) -> None:
    (project / "a,b:c%.py").write_text(SAFE)
    assert call("check", "--output-format", "github")[1] == (
        "::error title=ARC103,file=a%2Cb%3Ac%25.py,line=3,col=7,endLine=3,endColumn=23::ARC103 "
        "`x.sum() %25 2` is one number and has had no index since PyTorch 0.4, so this raises "
        "IndexError; write `.item()`\n"
    )
    (project / "a,b:c%.py").write_text(SAFE.replace("x.sum() %", "x.sum(\n) %"))
    annotation, *rest = call("check", "--output-format", "github")[1].splitlines()
    assert "`x.sum(%0A) %25 2`" in annotation
    assert rest == []


def test_sarif_has_places_and_rules(project: Path) -> None:
    (project / "a b.py").write_text(SAFE)
    run = sarif("--select", "ARC103,ARC110")
    (result,) = run["results"]  # type: ignore[misc]
    assert (result["ruleId"], result["ruleIndex"], result["level"]) == ("ARC103", 0, "warning")
    (place,) = result["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "a%20b.py"},
        "region": {"startLine": 3, "startColumn": 7, "endLine": 3, "endColumn": 23},
    }
    rules = run["tool"]["driver"]["rules"]  # type: ignore[index]
    assert [rule["id"] for rule in rules] == ["ARC103", "ARC110"]
    assert all(" " not in rule["helpUri"] for rule in rules)
    (result,) = sarif(str(project / "a b.py"))["results"]  # type: ignore[misc]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == (project / "a b.py").as_uri()


def test_json_lists_only_files_that_have_changed(project: Path) -> None:
    (project / "a.py").write_text(SAFE)
    (project / "b.py").write_text(UNSAFE)
    (project / "c.py").write_text(BROKEN)
    status, output = call("check", "--fix", "--json", "--output-format", "sarif")
    facts = json.loads(output)
    assert status == 2
    assert facts["fixed"] == [{"path": "a.py", "findings": 1}]
    assert [(each["path"], each["fix"]) for each in facts["findings"]] == [("b.py", "unsafe")]
    (trouble,) = facts["trouble"]
    assert trouble["path"] == "c.py"
    assert trouble["reason"].startswith("parses neither as Python 3 nor as Python 2: line 2")
    (project / "c.py").write_text(BY_HAND)
    (project / "b.py").unlink()
    facts = json.loads(call("check", "--json")[1])
    assert [each["fix"] for each in facts["findings"]] == [None]
    assert facts["fixed"] == facts["trouble"] == []


@pytest.mark.parametrize(
    ("texts", "summary"),
    [
        ([], "no findings in 0 files"),
        ([SAFE], "1 finding in 1 file, 1 can be fixed with --fix"),
        ([UNSAFE, UNSAFE], "2 findings in 2 files, 2 with --fix --unsafe-fixes"),
        ([BY_HAND], "1 finding in 1 file"),
        (
            [SAFE, UNSAFE, BY_HAND],
            "3 findings in 3 files, 1 can be fixed with --fix, 1 more with --fix --unsafe-fixes",
        ),
        ([SAFE + UNSAFE], "2 findings in 1 file, 1 can be fixed with --fix, "
         "1 more with --fix --unsafe-fixes"),
    ],
)  # fmt: skip
def test_the_last_line_counts(texts: list[str], summary: str, project: Path) -> None:
    for number, text in enumerate(texts):
        (project / f"{number}.py").write_text(text)
    status, output = call("check")
    assert (status, output.splitlines()[-1]) == (int(bool(texts)), summary)


@pytest.mark.parametrize("command", [("check", "--fix", "--diff"), ("migrate", "--diff", ".")])
def test_the_status_of_a_diff(command: tuple[str, ...], project: Path) -> None:
    assert call(*command) == (0, "")
    (project / "a.py").write_text(BY_HAND)
    assert call(*command) == (0, "")  # nothing would change
    (project / "a.py").write_text(SAFE)
    assert call(*command)[0] == 1
    (project / "b.py").write_text(BROKEN)
    assert call(*command)[0] == 2
    assert (project / "a.py").read_text() == SAFE


def test_a_diff_has_the_lines_of_the_file(project: Path) -> None:
    """A form feed ends no line, and a last line without a newline is marked as `diff` does."""
    (project / "a.py").write_text("import torch\n\f# a\fb\nx = torch.ones(3).sum()[0]")
    assert call("check", "--diff", str(project / "a.py"))[1] == (
        f"--- a{project}/a.py\n+++ b{project}/a.py\n@@ -1,3 +1,3 @@\n import torch\n \f# a\fb\n"
        "-x = torch.ones(3).sum()[0]\n\\ No newline at end of file\n"
        "+x = torch.ones(3).sum().item()\n\\ No newline at end of file\n"
    )


def test_migrate_lists_what_is_left_to_do_by_hand(project: Path) -> None:
    (project / "a.py").write_text(SAFE + BY_HAND)
    status, output = call("migrate", ".")
    assert status == 1
    assert output.splitlines()[:3] == [
        "rewrote a.py: fixed 1 finding",
        "left to do by hand:",
        "a.py:5:5: ARC110 `torch.gels` is gone; use torch.linalg.lstsq(A, B).solution, with A "
        "first",
    ]
    assert output.endswith("\nfixed 1 finding, 1 left in 1 file\n")
    status, output = call("migrate", "--json", ".")
    assert status == 1
    assert [each["code"] for each in json.loads(output)["findings"]] == ["ARC110"]
    (project / "a.py").write_text(SAFE)
    (project / "b.py").write_text(BROKEN)
    assert call("migrate", ".")[0] == 2
    assert call("migrate", "--json", "b.py")[0] == 2


@pytest.mark.parametrize("command", [("check", "--fix"), ("migrate",)])
def test_a_link_out_of_the_named_folder_is_trouble(command: tuple[str, ...], project: Path) -> None:
    (project / "out.py").write_text(SAFE)
    (project / "src").mkdir()
    (project / "src" / "a.py").symlink_to("../out.py")
    assert call(*command, "src")[0] == 2
    assert (project / "out.py").read_text() == SAFE


def test_migrate_applies_all_fixes_of_the_first_two_groups_and_no_other() -> None:
    for rule in RULES:
        assert rule.is_about_versions is rule.code.startswith(("ARC0", "ARC1"))
