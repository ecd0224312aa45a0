"""While a training run saves with ``keep=1``, a reader finds a whole checkpoint at any moment."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import anyrig
from anyrig.checkpoint import choice, load, series
from anyrig.checkpoint.series import Series
from anyrig.checkpoint.writer_mark import is_abandoned
from anyrig.errors import CheckpointDamagedError, CheckpointError


def save(folder: Path, step: int) -> None:
    net = nn.Linear(8, 8)
    nn.init.constant_(net.weight, step)
    anyrig.save(folder, model=net, step=step, keep=1, metric=step, best="max")


class SaveBefore:
    """Saves before the first calls of a function, so that what a reader has chosen is gone."""

    def __init__(self, function: Callable[..., Any], folder: Path, times: int) -> None:
        self.function, self.folder, self.left, self.step = function, folder, times, 1

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if self.left:
            self.left -= 1
            self.step += 1
            before, self.left = self.left, 0  # the save itself calls the function, too
            save(self.folder, self.step)
            self.left = before
        return self.function(*arguments, **keywords)


MOMENTS = {
    "after the folders were listed": (series, "open_checkpoint"),
    "before the files are hashed": (choice, "_find_damage"),
    "while the files are hashed": (choice, "require_whole"),
    "before the manifest is read": (load, "read_manifest"),
    "before the files are mapped": (load, "read_snapshot"),
}


@pytest.mark.parametrize("which", ["latest", "best"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_checkpoint_that_is_removed_while_it_is_chosen_is_replaced_by_the_next(
    moment: str, times: int, which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, net = tmp_path / "runs", nn.Linear(8, 8)
    save(folder, 1)
    module, name = MOMENTS[moment]
    saves = SaveBefore(getattr(module, name), folder, times)
    monkeypatch.setattr(module, name, saves)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing was damaged
        found = anyrig.load(folder, model=net, which=which)
    assert saves.left == 0
    assert found.step == saves.step == times + 1
    assert (net.weight == found.step).all()


def test_mapped_files_are_read_after_they_were_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Linear(8, 8)
    save(tmp_path / "runs", 1)
    prepare = load.prepare

    def remove_and_prepare(*arguments: Any, **keywords: Any) -> Any:
        save(tmp_path / "runs", 2)
        return prepare(*arguments, **keywords)

    monkeypatch.setattr(load, "prepare", remove_and_prepare)
    assert anyrig.load(tmp_path / "runs", model=net).step == 1
    assert (net.weight == 1).all()


def test_a_series_that_is_removed_faster_than_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "runs", 1)
    monkeypatch.setattr(load, "_MOST_CHOICES", 3)
    saves = SaveBefore(load.read_snapshot, tmp_path / "runs", 1000)
    monkeypatch.setattr(load, "read_snapshot", saves)
    with pytest.raises(
        CheckpointError, match=r"has removed each of 3 checkpoints of .*larger keep"
    ):
        anyrig.load(tmp_path / "runs", model=nn.Linear(8, 8))


def test_a_single_checkpoint_that_is_removed_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "runs", 1)
    saves = SaveBefore(choice.require_whole, tmp_path / "runs", 1)
    monkeypatch.setattr(choice, "require_whole", saves)
    with pytest.raises(CheckpointError, match=r"000001-step-1 does not exist"):
        anyrig.load(tmp_path / "runs" / "000001-step-1", model=nn.Linear(8, 8))


def test_a_damaged_checkpoint_is_still_reported(tmp_path: Path) -> None:
    for step in (1, 2):
        anyrig.save(tmp_path / "runs", model=nn.Linear(8, 8), step=step)
    (tmp_path / "runs" / "000002-step-2" / "values.pt").unlink()
    with pytest.warns(RuntimeWarning, match=r"values\.pt is missing.*loading"):
        assert anyrig.load(tmp_path / "runs", model=nn.Linear(8, 8)).step == 1
    shutil.rmtree(tmp_path / "runs" / "000001-step-1")
    with pytest.raises(CheckpointDamagedError, match="has no whole checkpoint"):
        anyrig.load(tmp_path / "runs", model=nn.Linear(8, 8))


def test_listing_a_series_skips_what_was_removed_meanwhile(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        anyrig.save(tmp_path / "runs", model=nn.Linear(8, 8), step=step)
    damaged: list[CheckpointError] = []
    found = Series(tmp_path / "runs").checkpoints(damaged)
    assert next(found).manifest.step == 3
    shutil.rmtree(tmp_path / "runs" / "000002-step-2")
    assert [each.manifest.step for each in found] == [1]
    assert damaged == []


def train(folder: Path, saves: int) -> None:
    try:
        for step in range(1, saves + 1):
            save(folder, step)
    except BaseException:
        folder.with_name("error.txt").write_text(traceback.format_exc())
        raise


@pytest.mark.parametrize("loads", [30, pytest.param(2000, marks=pytest.mark.sweep)])
def test_loads_beside_a_process_that_saves(loads: int, tmp_path: Path) -> None:
    folder, net, before = tmp_path / "runs", nn.Linear(8, 8), 0
    save(folder, 0)
    trainer = multiprocessing.get_context("spawn").Process(target=train, args=(folder, 10**6))
    trainer.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            number = 0
            while number < loads or before <= 2:  # the other process may be slow to start
                number += 1
                if not trainer.is_alive():
                    error = folder.with_name("error.txt")
                    pytest.fail(error.read_text() if error.exists() else f"{trainer.exitcode}")
                found = anyrig.load(folder, model=net)
                assert found.step is not None
                assert found.step >= before
                assert (net.weight == found.step).all()
                before = found.step
    finally:
        trainer.kill()
        trainer.join()


def test_a_temporary_folder_with_a_new_file_is_not_abandoned(tmp_path: Path) -> None:
    folder = tmp_path / ".tmp-000001-deadbeef.1-aaaaaaaa"
    folder.mkdir()
    (folder / "model.safetensors").write_text("x")
    old = time.time() - 30 * 3600
    os.utime(folder, (old, old))
    assert not is_abandoned(folder)
    os.utime(folder / "model.safetensors", (old, old))
    os.utime(folder, (old, old))
    assert is_abandoned(folder)
