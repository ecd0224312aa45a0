"""Over 300 corrupted files of other tools: refused with a clear error, and no code is run.

The files are the same in every run. Where a format has no checksum, a changed bit may go unnoticed;
the file is then read without running code.
"""

from __future__ import annotations

import pickle
import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from foreign_files import FILES, FOLDERS
from hostile_pickles import CONTAINERS, copy, make_payloads, remove, wrap

from anyrig.checkpoint.foreign.read import read_foreign
from anyrig.checkpoint.foreign.state import ForeignState
from anyrig.errors import CheckpointError, UnsafeFileError

EVERY = FILES | FOLDERS
FLIPS, TRUNCATIONS = 16, 6  # of each of the ten formats
# No reader opens these, so what is in them changes nothing.
UNREAD = ("config.json", "random_states_0.pkl")
# Torch files have checksums: what is read equals what was written.
CHECKED = ("plain.pt", "wrapped.pth", "nested.pt", "lightning.ckpt", "hugging_face_torch")


def files_of(path: Path) -> list[Path]:
    inside = sorted(path.iterdir()) if path.is_dir() else [path]
    return [each for each in inside if each.name not in UNREAD]


def read_or_refuse(path: Path) -> ForeignState | None:
    """Return what is read, or None if it was refused; any other exception fails the test."""
    try:
        return read_foreign(path)
    except CheckpointError as error:
        message = str(error)
    assert len(message) > 40
    assert str(path.parent) in message
    return None


def corrupt(good: Path, target: Path, number: int) -> Path:
    """Copy a file or folder, with one bit changed or one file cut short."""
    copy(good, target)
    choice = random.Random(f"{good.name} {number}")
    file = choice.choice(files_of(target))
    content = bytearray(file.read_bytes())
    if number >= FLIPS:
        file.write_bytes(content[: choice.randrange(len(content))])
    else:
        content[choice.randrange(len(content))] ^= 1 << choice.randrange(8)
        file.write_bytes(content)
    return target


@pytest.mark.parametrize("name", EVERY)
def test_a_corrupted_file_is_refused_or_read_without_running_code(
    name: str, tmp_path: Path
) -> None:
    good = EVERY[name](tmp_path / name)
    expected = dict(read_foreign(good).tensors)
    ends = Counter[str]()
    for number in range(FLIPS + TRUNCATIONS):
        (tmp_path / f"{number}").mkdir()
        target = corrupt(good, tmp_path / f"{number}" / name, number)
        state = read_or_refuse(target)
        ends["refused" if state is None else "read"] += 1
        if number >= FLIPS:
            assert state is None, f"case {number} was cut short and read"
        elif state is not None and name in CHECKED:
            torch.testing.assert_close(dict(state.tensors), expected, rtol=0, atol=0)
        remove(target)
    assert ends["refused"] >= TRUNCATIONS


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_pickle_that_runs_code_is_refused_in_every_container(
    container: str, tmp_path: Path
) -> None:
    sentinel = tmp_path / "it_ran"
    write, poison = CONTAINERS[container]
    good = write(tmp_path / "good.pt")
    for number, payload in enumerate(make_payloads(sentinel).values()):
        path = copy(good, tmp_path / f"{number}.pt")
        poison(path, payload)
        with pytest.raises(UnsafeFileError, match="is not read") as caught:
            read_foreign(path)
        assert "Nothing was run" in str(caught.value)
        remove(path)
    assert not sentinel.exists()


def test_the_hostile_pickles_would_run_code_elsewhere(tmp_path: Path) -> None:
    sentinel = tmp_path / "it_ran"
    for name, payload in make_payloads(sentinel).items():
        value = pickle.loads(wrap(payload))["weight"]
        if hasattr(value, "wait"):
            value.wait()
        assert sentinel.exists(), name
        sentinel.unlink()


def test_there_are_300_cases(tmp_path: Path) -> None:
    hostile = len(CONTAINERS) * len(make_payloads(tmp_path))
    assert len(EVERY) * (FLIPS + TRUNCATIONS) + hostile >= 300
