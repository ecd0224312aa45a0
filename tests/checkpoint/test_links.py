"""A save removes and writes nothing outside of its series, and a load reads nothing outside."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from foreign_files import (
    write_distributed,
    write_hugging_face,
    write_legacy,
    write_safetensors,
    write_torch,
)
from torch import nn

import anyrig
from anyrig.checkpoint import read_foreign
from anyrig.checkpoint.any_model import open_any
from anyrig.checkpoint.commit import remove_abandoned, remove_surplus
from anyrig.checkpoint.convert import convert
from anyrig.checkpoint.describe import describe
from anyrig.checkpoint.disk import Disk
from anyrig.checkpoint.integrity import check_integrity
from anyrig.checkpoint.series import Series
from anyrig.errors import CheckpointDamagedError, CheckpointError

ABANDONED = ".tmp-000001-00000000.1-aaaaaaaa"  # of another machine
FILES = ("model.safetensors", "values.pt", "manifest.json")


def make_old(*paths: Path) -> None:
    for path in paths:
        os.utime(path, (1e9, 1e9), follow_symlinks=False)


def save(series: Path, step: int, keep: int | None = None) -> Path:
    return anyrig.save(series, model=nn.Linear(2, 2), step=step, keep=keep)


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """A folder outside the series, whose files must not change."""
    folder = tmp_path / "precious"
    (folder / "chapters").mkdir(parents=True)
    (folder / "thesis.tex").write_text("years of work")
    make_old(folder / "thesis.tex", folder / "chapters", folder)
    yield folder
    assert sorted(path.name for path in folder.iterdir()) == ["chapters", "thesis.tex"]
    assert (folder / "thesis.tex").read_text() == "years of work"


class TestRemoval:
    def test_a_link_named_like_a_temporary_folder_is_left_alone(
        self, precious: Path, tmp_path: Path
    ) -> None:
        series = tmp_path / "runs"
        series.mkdir()
        (series / ABANDONED).symlink_to(precious)
        (series / f"{ABANDONED}b").symlink_to(precious / "chapters")
        (series / f"{ABANDONED}c").symlink_to("nothing")
        make_old(*series.iterdir())
        save(series, 1)
        assert len([*series.iterdir()]) == 4

    def test_links_in_an_abandoned_folder_are_removed_but_not_followed(
        self, precious: Path, tmp_path: Path
    ) -> None:
        folder = tmp_path / "runs" / ABANDONED
        folder.mkdir(parents=True)
        (folder / "model.safetensors").symlink_to(precious / "thesis.tex")
        (folder / "more").symlink_to(precious)
        os.mkfifo(folder / "pipe")
        make_old(*folder.iterdir(), folder)
        save(tmp_path / "runs", 1)
        assert not folder.exists()

    def test_a_pipe_or_a_file_with_the_name_of_a_temporary_folder_is_left_alone(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "runs").mkdir()
        os.mkfifo(tmp_path / "runs" / ABANDONED)
        (tmp_path / "runs" / f"{ABANDONED}b").touch()
        make_old(*(tmp_path / "runs").iterdir())
        save(tmp_path / "runs", 1)
        assert len([*(tmp_path / "runs").iterdir()]) == 3

    def test_a_checkpoint_that_was_moved_and_linked_back_stays(self, tmp_path: Path) -> None:
        series, archive = tmp_path / "runs", tmp_path / "archive"
        first = save(series, 1)
        shutil.move(first, archive)
        first.symlink_to(archive)
        for step in (2, 3):
            save(series, step, keep=1)
        assert sorted(path.name for path in series.iterdir()) == [first.name, "000003-step-3"]
        assert anyrig.load(first, model=nn.Linear(2, 2)).step == 1

    def test_a_folder_that_becomes_a_link_before_it_is_emptied_is_not_followed(
        self, precious: Path, tmp_path: Path
    ) -> None:
        series = Series(tmp_path / "runs")
        save(series.folder, 1), save(series.folder, 2)

        class Attacked(Disk):
            def rename(self, source: Path, target: Path) -> None:
                source.rename(tmp_path / "aside")
                target.symlink_to(precious)

        with pytest.warns(RuntimeWarning, match="is surplus and cannot be removed"):
            remove_surplus(series, 1, Attacked())

    def test_a_folder_that_becomes_a_link_between_two_files_is_not_followed(
        self, precious: Path, tmp_path: Path
    ) -> None:
        folder = tmp_path / "runs" / ABANDONED
        folder.mkdir(parents=True)
        (folder / "thesis.tex").touch()
        make_old(folder / "thesis.tex", folder)

        class Attacked(Disk):
            def names_in(self, path: Path) -> list[str]:
                names = super().names_in(path)
                shutil.rmtree(path)
                path.symlink_to(precious)
                return names

        remove_abandoned(Series(folder.parent), Attacked())
        assert folder.is_symlink()

    def test_a_temporary_folder_that_becomes_a_link_gets_no_files(
        self, precious: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def make_link(self: Disk, path: Path) -> None:
            path.symlink_to(precious) if path.name.startswith(".tmp-") else path.mkdir()

        monkeypatch.setattr(Disk, "make_folder", make_link)
        with pytest.raises(CheckpointError, match="cannot be written: Not a directory"):
            save(tmp_path / "runs", 1)


def make_link_out(path: Path) -> None:
    other = path.parent.parent.parent / f"outside-{path.name}"
    path.rename(other)  # its content is right
    path.symlink_to(other)


def make_link_within(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES: dict[str, Callable[[Path], None]] = {
    "is a link": make_link_out,
    "is a link ": make_link_within,
    "is a pipe": make_pipe,
    "is a link  ": make_device,
    "is a folder": make_folder,
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("problem", CHANGES)
def test_only_regular_files_of_the_checkpoint_are_read(
    problem: str, file: str, tmp_path: Path
) -> None:
    series = tmp_path / "runs"
    save(series, 1)
    folder = save(series, 2)
    CHANGES[problem](folder / file)
    pattern = rf"{file}.* it {problem.strip()}, not a regular file"
    net = nn.Linear(2, 2)
    for verify in (True, False):
        with pytest.raises(CheckpointDamagedError, match=pattern):
            anyrig.load(folder, model=net, verify=verify)
    for read in (open_any, describe):
        with pytest.raises(CheckpointDamagedError, match=pattern):
            read(folder)
    (integrity,) = check_integrity(folder)
    assert problem.strip() in str(integrity.findings[0])
    with pytest.warns(RuntimeWarning, match=pattern):
        assert anyrig.load(series, model=net).step == 1
    assert save(series, 3).name == "000003-step-3"


def test_a_series_in_a_linked_folder_is_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    for step in (1, 2, 3):
        save(tmp_path / "runs" / "a", step, keep=1)
        save(tmp_path / "runs", step, keep=1)
    assert anyrig.load(tmp_path / "runs" / "a", model=nn.Linear(2, 2)).step == 3
    assert [path.name for path in (tmp_path / "disk" / "a").iterdir()] == ["000003-step-3"]


@pytest.mark.parametrize("name", [b"expos\xe9", b"a\nb", b"\xff\xfe", "é".encode()])
def test_a_series_below_a_folder_of_any_name_is_loaded(name: bytes, tmp_path: Path) -> None:
    series = tmp_path / os.fsdecode(name) / "runs"
    net, optimizer = nn.Linear(2, 2), None
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in (1, 2):
            anyrig.save(series, model=net, optimizer=optimizer, step=step, keep=1)
        assert anyrig.load(series, model=net, optimizer=optimizer).step == 2


def test_a_file_that_is_written_replaces_a_link_and_not_its_target(
    precious: Path, tmp_path: Path
) -> None:
    folder = save(tmp_path / "runs", 1)
    target = tmp_path / "out.safetensors"
    target.symlink_to(precious / "thesis.tex")
    with pytest.raises(CheckpointError, match="exists already, and was not changed"):
        convert(folder, target)
    convert(folder, target, overwrite=True)
    assert not target.is_symlink()
    dangling = tmp_path / "new.safetensors"
    dangling.symlink_to(precious / "chapters" / "new")
    with pytest.raises(CheckpointError, match="exists already, and was not changed"):
        convert(folder, dangling)
    assert [*(precious / "chapters").iterdir()] == []


@pytest.mark.parametrize("make", [make_pipe, make_device])
@pytest.mark.parametrize(
    "write",
    [write_torch, write_legacy, write_safetensors, write_hugging_face, write_distributed],
)
def test_special_files_of_other_tools_are_refused(
    write: Callable[[Path], Path], make: Callable[[Path], None], tmp_path: Path
) -> None:
    place = write(tmp_path / "a")
    # config.json is not read.
    files = [place] if place.is_file() else [f for f in place.iterdir() if f.name != "config.json"]
    for number, file in enumerate(files):
        copy = tmp_path / f"{number}{place.suffix}"
        shutil.copytree(place, copy) if place.is_dir() else shutil.copy(place, copy)
        changed = copy / file.name if place.is_dir() else copy
        make(changed)
        for read in (read_foreign, describe):
            with pytest.raises(CheckpointError, match=r"not a regular file|outside its folder"):
                read(copy)
