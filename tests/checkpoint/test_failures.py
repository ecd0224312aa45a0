"""Saves that are killed, and disks that fail: the last good checkpoint is there and is found."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

import anyrig
from anyrig.errors import CheckpointError
from forked_programs import run_forked

HERE = Path(__file__).parent


def run_kills(script: str, folder: Path, kills: int, seed: int) -> list[list[int]]:
    words = str(folder), str(kills), str(seed)
    done = run_forked(str(HERE / script), *words, timeout=30 + 3 * kills)
    assert done.returncode == 0, done.stderr
    rows = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert len(rows) == kills
    assert all(found in (announced, announced + 1) for *_, announced, found, _ in rows)
    assert all(left <= 2 for *_, left in rows)  # later saves remove what was left
    return rows


@pytest.mark.parametrize("kills", [15, pytest.param(250, marks=pytest.mark.sweep)])
def test_kills_at_random_moments_lose_no_announced_checkpoint(kills: int, tmp_path: Path) -> None:
    rows = run_kills("killed_saves.py", tmp_path / "a", kills, 0)
    # A few kills may all miss the moments of a save.
    assert kills < 100 or any(left for _, _, left in rows)


@pytest.mark.parametrize("kills", [10, pytest.param(250, marks=pytest.mark.sweep)])
def test_kills_of_ranks_lose_no_announced_checkpoint(kills: int, tmp_path: Path) -> None:
    """One or all of four ranks are killed while rank 0, all ranks or threads write."""
    rows = run_kills("killed_ranks.py", tmp_path / "a", kills, 0)
    assert {1, 4} == {killed for killed, *_ in rows}
    assert kills < 100 or any(left for *_, left in rows)


@pytest.mark.parametrize("interrupts", [8, pytest.param(200, marks=pytest.mark.sweep)])
def test_an_interrupted_process_loads_and_saves_again(interrupts: int, tmp_path: Path) -> None:
    words = str(tmp_path / "a"), str(interrupts), "0"
    done = run_forked(str(HERE / "interrupted_saves.py"), *words, timeout=30 + interrupts)
    assert done.returncode == 0, done.stderr
    rows = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert len(rows) == interrupts
    assert all(found in (saved, saved + 1) and not left for saved, found, left in rows)


@pytest.mark.parametrize("loads", [30, pytest.param(2000, marks=pytest.mark.sweep)])
def test_loads_beside_a_process_that_saves_find_a_whole_checkpoint(
    loads: int, tmp_path: Path
) -> None:
    words = str(tmp_path / "a"), str(loads)
    done = run_forked(str(HERE / "loads_beside_saves.py"), *words, timeout=30 + loads)
    assert done.returncode == 0, done.stderr
    steps = [int(line) for line in done.stdout.splitlines()]
    assert len(steps) == loads
    assert steps == sorted(steps)
    assert steps[-1] > 1  # the other process has saved


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if not sys.platform.startswith("linux") or shutil.which("mount") is None:
        pytest.skip("there is no tmpfs")
    if subprocess.run(words, check=False, capture_output=True).returncode != 0:
        pytest.skip("a file system may be mounted by root only")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("points", [12, pytest.param(64, marks=pytest.mark.sweep)])
def test_a_full_disk_leaves_the_series_as_it_was(points: int, small_disk: Path) -> None:
    done = run_forked(str(HERE / "full_disk.py"), str(small_disk), str(points), timeout=120)
    assert done.returncode == 0, done.stderr
    *rows, last = done.stdout.splitlines()
    assert last == "succeeded"
    assert len(rows) >= points - 4
    assert {tuple(row.split()[1:]) for row in rows} == {("1", "000001-step-1")}


def test_a_gather_that_fails_ends_with_the_name_of_the_rank(tmp_path: Path) -> None:
    done = run_forked(str(HERE / "failed_gather.py"), str(tmp_path / "a"), timeout=60)
    assert done.returncode == 0, done.stderr
    own, other = done.stdout.splitlines()
    assert re.match(r"0 s, RuntimeError: .*(memory|alloc)", own), own
    assert re.match(r"([2-9]|1\d) s, OtherRankError: rank 0 failed in anyrig.save\(\): R", other)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["000001-step-1"]


def test_ranks_are_in_step_again_after_a_save_of_one_rank_alone(tmp_path: Path) -> None:
    done = run_forked(str(HERE / "ranks_out_of_step.py"), str(tmp_path / "a"), timeout=60)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert re.match(r"0, alone, RankWaitError: .*rank 1 did not take part within 0.5 s", lines[0])
    for rank, line in ((0, lines[1]), (1, lines[3])):
        assert re.match(
            rf"{rank}, first, RankMismatchError: .* out of step: rank 0 is in anyrig.save\(\), "
            r"call 2 of a checkpoint, step 1; rank 1 in anyrig.save\(\), call 1 of a checkpoint, "
            r"step 2\.",
            line,
        ), line
    assert [lines[2], lines[4]] == ["0, second, 000001", "1, second, 000001"]


@contextmanager
def largest_file(bytes_: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("bytes_", [0, 100, 3000])
def test_a_file_that_cannot_be_written_is_named(bytes_: int, tmp_path: Path) -> None:
    model = nn.Linear(32, 32)
    anyrig.save(tmp_path / "a", model=model, step=1, keep=1)
    saved = model.weight.detach().clone()
    nn.init.zeros_(model.weight)
    with (
        largest_file(bytes_),
        pytest.raises(
            CheckpointError, match=r"\.tmp-000002-.*/model.safetensors cannot be written: File"
        ) as caught,
    ):
        anyrig.save(tmp_path / "a", model=model, step=2, keep=1)
    assert str(caught.value).endswith("(ulimit -f). Earlier checkpoints are unchanged")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["000001-step-1"]
    assert anyrig.load(tmp_path / "a", model=model).step == 1
    assert torch.equal(model.weight, saved)
    assert anyrig.save(tmp_path / "a", model=model, step=2, keep=1).name == "000002-step-2"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(tmp_path: Path) -> None:
    anyrig.save(tmp_path / "a", step=1)
    (tmp_path / "a").chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match=r"cannot be created: Permission denied\. Make"):
            anyrig.save(tmp_path / "a", step=2)
        assert anyrig.load(tmp_path / "a").step == 1
    finally:
        (tmp_path / "a").chmod(0o700)
    with pytest.raises(CheckpointError, match="/proc/1/a cannot be created"):
        anyrig.save("/proc/1/a", step=2)


def test_a_path_below_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "a"):
        with pytest.raises(CheckpointError, match=rf"{path} cannot be created: "):
            anyrig.save(path)
        with pytest.raises(CheckpointError, match=rf"{path} "):
            anyrig.load(path)
