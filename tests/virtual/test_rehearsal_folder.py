"""Clean-up removes only what rehearsals of this user have left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anyrig.virtual.rehearsal_folder import remove_unless_used

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")


def left_behind(folder: Path) -> Path:
    (folder / "leases").mkdir(parents=True)
    (folder / "leases" / "GPU-a.lock").touch()
    (folder / "gpus").touch()
    folder.chmod(0o700)
    return folder


def test_the_folder_of_a_killed_rehearsal_is_removed(tmp_path: Path) -> None:
    folder = left_behind(tmp_path / "anyrig-rehearsal")
    remove_unless_used(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_another_folder_is_not_followed(tmp_path: Path) -> None:
    precious = left_behind(tmp_path / "precious")
    link = tmp_path / "anyrig-rehearsal"
    link.symlink_to(precious)
    remove_unless_used(link)
    assert (precious / "leases" / "GPU-a.lock").exists()
    assert (precious / "gpus").exists()


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_folder_that_others_can_write_to_is_left_alone(mode: int, tmp_path: Path) -> None:
    folder = left_behind(tmp_path / "anyrig-rehearsal")
    folder.chmod(mode)
    remove_unless_used(folder)
    assert (folder / "gpus").exists()


@pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can change owners"
)
def test_a_folder_of_another_user_is_left_alone(tmp_path: Path) -> None:
    folder = left_behind(tmp_path / "anyrig-rehearsal")
    os.chown(folder, 12345, 12345)
    remove_unless_used(folder)
    assert (folder / "gpus").exists()
