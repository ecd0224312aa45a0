"""Only the output of the last failed groups is kept, and no other folder is removed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from failing_group import RUN, failing_group

from anyrig.processes.log_folder import MOST_KEPT, keep_log_folder, new_log_folder


def failed_folder(order: int) -> Path:
    folder = new_log_folder()
    (folder / "attempt_0").mkdir()
    (folder / "attempt_0" / "stderr.log").write_text("on fire")
    (folder / "failed").touch()
    os.utime(folder / "failed", (order, order))
    return folder


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def test_the_last_few_folders_stay() -> None:
    folders = [failed_folder(order) for order in range(8)]
    last = new_log_folder()
    keep_log_folder(last)
    assert sorted(last.parent.iterdir()) == sorted([*folders[-MOST_KEPT + 1 :], last])


def test_fewer_folders_all_stay() -> None:
    folders: list[Path] = []
    for order in range(MOST_KEPT + 2):
        folders.append(new_log_folder())
        keep_log_folder(folders[-1])
        os.utime(folders[-1] / "failed", (order, order))
        assert sorted(folders[-1].parent.iterdir()) == sorted(folders[-MOST_KEPT:])


def test_nothing_else_is_removed(tmp_path: Path) -> None:
    temporary = Path(tempfile.gettempdir())
    running = new_log_folder()
    named_otherwise = failed_folder(0).rename(temporary / "anyrig-run-precious-data")
    elsewhere = failed_folder(0).rename(tmp_path / "elsewhere")
    link = temporary / "anyrig-run-abcdefgh"
    link.symlink_to(elsewhere)
    mark_is_a_link = new_log_folder()
    (mark_is_a_link / "failed").symlink_to(elsewhere / "failed")
    others = failed_folder(0)
    if os.getuid() == 0:
        os.chown(others, 12345, 12345)
    else:
        others.rename(tmp_path / "others")
    inside = failed_folder(1)
    (inside / "link").symlink_to(elsewhere)
    for order in range(2, 2 + MOST_KEPT):
        failed_folder(order)
    keep_log_folder(new_log_folder())
    assert not inside.exists()
    for spared in (running, named_otherwise, link, mark_is_a_link):
        assert spared.is_dir(), spared
    assert (elsewhere / "attempt_0" / "stderr.log").read_text() == "on fire"
    assert others.exists() or os.getuid() != 0


@pytest.mark.parametrize("status", [0, 3])
def test_only_a_failed_group_leaves_its_output(status: int, tmp_path: Path) -> None:
    old = [failed_folder(order) for order in range(MOST_KEPT)]
    script = tmp_path / "end.py"
    script.write_text(f"import sys; print('ended'); sys.exit({status})")
    command = [*RUN, "--device", "cpu", "--nproc-per-device", "2", str(script)]
    with failing_group(tmp_path) as group:
        launcher = group.start(command=command)
        group.wait()
        assert launcher.returncode == bool(status), group.errors()
        new = [folder for folder in group.temporary.iterdir() if folder not in old]
        if status == 0:
            assert new == []
            assert all(folder.exists() for folder in old)
        else:
            assert len(new) == 1
            assert f"{new[0]}/" in group.errors()
            assert [folder.exists() for folder in old] == [False] + [True] * (MOST_KEPT - 1)
