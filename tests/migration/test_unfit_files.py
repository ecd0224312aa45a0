"""A path named like a program that is no regular file of a sane size is reported, not read."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from anyrig.migration.edit import Edit, Fix, choose_compatible
from anyrig.migration.files import find_files
from anyrig.migration.lines import Lines
from anyrig.migration.project import FileReport, check_files, rewrite_files
from anyrig.migration.rules.every import RULES
from anyrig.migration.settings import read_settings
from anyrig.migration.source_file import MOST_SOURCE_BYTES
from forked_programs import run_anyrig

OLD = "import torch\nfrom torch.autograd import Variable\nx = Variable(torch.ones(3))\n"
NEW = "import torch\nx = torch.ones(3)\n"


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(path))


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_pipe(path: Path) -> None:
    os.mkfifo(path.with_suffix(".pipe"))
    path.symlink_to(path.with_suffix(".pipe"))


def make_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MOST_SOURCE_BYTES + 1)


def link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere.py")


def link_in_a_circle(path: Path) -> None:
    path.symlink_to(path.name)


UNFIT = {
    "it is a pipe": make_pipe,
    "it is a socket": make_socket,
    "it is a device": link_to_device,
    "it is a pipe, behind a link": link_to_pipe,
    "it has 10000001 bytes, more than 10000000": make_large,
    "No such file": link_to_nothing,
    "Too many levels of symbolic links": link_in_a_circle,
}


@pytest.mark.parametrize("problem", UNFIT)
@pytest.mark.parametrize("is_named", [False, True], ids=["found", "named"])
def test_it_is_named_and_the_rest_is_checked(problem: str, is_named: bool, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(OLD)
    UNFIT[problem](tmp_path / "b.py")
    found = is_named and not problem.startswith(("No such", "Too many"))
    paths = sorted(tmp_path.glob("[ab].py")) if found else [tmp_path]
    for reports in (
        check_files(find_files(paths), RULES),
        rewrite_files(find_files(paths), RULES, allow_unsafe=True, write=True, within=paths),
    ):
        good, bad = reports
        assert good.trouble is None
        assert bad.path == tmp_path / "b.py"
        assert bad.trouble is not None
        assert problem.partition(", behind")[0] in bad.trouble
        assert not bad.is_read
    assert (tmp_path / "a.py").read_text() == NEW


def test_the_settings_are_a_regular_file_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pyproject.toml")
    assert read_settings(tmp_path).select == ()


@pytest.mark.parametrize("command", [("check",), ("check", "--fix"), ("migrate",)], ids=" ".join)
def test_the_commands_end_with_2(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    os.mkfifo(tmp_path / "b.py")
    done = run_anyrig(*command, str(tmp_path))
    assert done.returncode == 2
    assert f"{tmp_path / 'b.py'}: cannot be read: " in done.stderr
    assert "it is a pipe, not a regular file" in done.stderr


def rewrite(*paths: Path) -> list[FileReport]:
    return list(
        rewrite_files(find_files(paths), RULES, allow_unsafe=True, write=True, within=paths)
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "outside.py").write_text(OLD)
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def test_a_link_out_of_the_folder_is_not_followed(project: Path) -> None:
    outside = project.parent / "outside.py"
    (project / "a.py").symlink_to(outside)
    (project / "b.py").symlink_to("../outside.py")
    (project / "c.py").symlink_to("a.py")
    for report in rewrite(project):
        assert report.trouble == (
            f"is a link to {outside}, and is unchanged; name that file to rewrite it"
        )
    assert outside.read_text() == OLD


def test_a_link_to_a_folder_whose_name_begins_alike_is_not_followed(project: Path) -> None:
    beside = project.with_name(f"{project.name}-old")
    beside.mkdir()
    (beside / "a.py").write_text(OLD)
    (project / "a.py").symlink_to(beside / "a.py")
    (report,) = rewrite(project)
    assert report.trouble is not None
    assert report.trouble.startswith(f"is a link to {beside / 'a.py'}, and is unchanged")
    assert (beside / "a.py").read_text() == OLD


def test_a_linked_folder_is_not_entered(project: Path) -> None:
    (project / "sub").symlink_to(project.parent)
    assert rewrite(project) == []


def test_a_hard_link_keeps_the_other_name(project: Path) -> None:
    outside = project.parent / "outside.py"
    os.link(outside, project / "a.py")
    rewrite(project)
    assert (project / "a.py").read_text() == NEW
    assert outside.read_text() == OLD


def test_links_within_the_folder_and_named_ones_are_followed(project: Path) -> None:
    (project / "a.py").write_text(OLD)
    (project / "b.py").symlink_to("a.py")
    assert [report.trouble for report in rewrite(project)] == [None, None]
    assert (project / "a.py").read_text() == NEW
    assert (project / "b.py").is_symlink()
    (project / "c.py").symlink_to("../outside.py")
    (report,) = rewrite(project / "c.py")
    assert report.trouble is None
    assert (project.parent / "outside.py").read_text() == NEW


def conflicts(one: Edit, other: Edit) -> bool:
    if one.start == one.end and other.start == other.end:
        return one.start == other.start
    return one.start < other.end and other.start < one.end


def test_edits_are_chosen_as_if_each_pair_were_compared() -> None:
    spans = [(start, end) for start in range(6) for end in range(start, 6)]
    for first in spans:
        for second in spans:
            for third in spans:
                fixes = [
                    Fix((Edit(*span, str(number)),), is_safe=True)
                    for number, span in enumerate((first, second, third))
                ]
                chosen: list[Fix] = []
                for fix in fixes:
                    if not any(conflicts(fix.edits[0], each.edits[0]) for each in chosen):
                        chosen.append(fix)
                assert choose_compatible(fixes) == tuple(chosen)


def test_lines_end_in_three_ways() -> None:
    text = "a\nbc\r\nd\re\n\r\nf"
    lines = Lines(text)
    assert [text[start] for start in lines.starts] == ["a", "b", "d", "e", "\r", "f"]
    assert lines.position(text.index("c")) == (2, 2)
    assert lines.position(len(text)) == (6, 2)


def test_an_environment_of_any_name_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "py311" / "lib").mkdir(parents=True)
    (tmp_path / "py311" / "pyvenv.cfg").write_text("home = somewhere")
    (tmp_path / "py311" / "lib" / "a.py").write_text("")
    (tmp_path / "b.py").write_text("")
    assert [path.name for path in find_files([tmp_path])] == ["b.py"]
