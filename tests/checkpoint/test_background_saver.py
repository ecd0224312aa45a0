"""A save in the background has the state of its call, and its failure is never lost."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import anyrig
from anyrig.checkpoint import BackgroundSaver, Series
from anyrig.checkpoint.disk import Disk
from anyrig.errors import CheckpointError


def make(width: int = 2048) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(width, width)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_training_goes_on_while_the_state_of_the_call_is_written(tmp_path: Path) -> None:
    model, optimizer = make()
    with BackgroundSaver(tmp_path / "a") as saver:
        for step in range(3):
            expected = model.weight.detach().clone()
            moment = optimizer.state[model.weight]["exp_avg"].clone()
            saver.save(model=model, optimizer=optimizer, step=step, word="kept")
            optimizer.step()
            with torch.no_grad():
                model.bias.zero_()
                optimizer.state[model.weight]["exp_avg"].zero_()
            other, other_optimizer = make()
            folder = saver.wait()
            found = anyrig.load(tmp_path / "a", model=other, optimizer=other_optimizer)
            assert (found.path, found.step, found["word"]) == (folder, step, "kept")
            assert torch.equal(other.weight, expected)
            assert torch.equal(other_optimizer.state[other.weight]["exp_avg"], moment)
            assert bool(other.bias.any()) == (step == 0)
    assert not [each for each in threading.enumerate() if each.name == "anyrig-save"]


def test_the_memory_of_the_copies_is_used_again(tmp_path: Path) -> None:
    model, optimizer = make(64)
    saver = BackgroundSaver(tmp_path)
    addresses = []
    for _ in range(2):
        saver.save(model=model, optimizer=optimizer)
        addresses.append([each.data_ptr() for each in saver._copies._buffers])
    assert addresses[0] == addresses[1]
    assert len(addresses[0]) == 8
    saver.save(model=nn.Linear(3, 3))
    saver.wait()
    assert [tuple(each.shape) for each in saver._copies._buffers] == [(3,), (3, 3)]


def test_a_copy_has_the_element_type_of_its_tensor(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    saver = BackgroundSaver(tmp_path)
    saver.save(model=model)
    saver.save(model=model.double())
    path = saver.wait()
    assert path is not None
    assert load_file(path / "model.safetensors")["weight"].dtype == torch.float64


def test_keep_counts_the_saves_in_the_background(tmp_path: Path) -> None:
    saver = BackgroundSaver(tmp_path, keep=2)
    for step in range(4):
        saver.save(step=step, metric=-step, best="max")
    saver.wait()
    steps = [each.manifest.step for each in Series(tmp_path).checkpoints()]
    assert steps == [3, 2, 0]  # and the best


def test_a_failure_is_raised_by_the_next_call_and_loses_nothing(tmp_path: Path) -> None:
    series, aside = tmp_path / "a", tmp_path / "aside"
    saver = BackgroundSaver(series)
    saver.save(step=1)
    assert saver.wait() == Series(series).folder / "000001-step-1"
    series.rename(aside)
    series.write_text("a file is in the way")
    saver.save(step=2)
    with pytest.raises(CheckpointError, match=f"{series} cannot be created"):
        saver.save(step=3)
    series.unlink()
    aside.rename(series)
    assert saver.wait() is None  # the failure is reported once
    saver.save(step=4)
    saver.wait()
    assert [each.manifest.step for each in Series(series).checkpoints()] == [4, 1]


def test_a_state_that_cannot_be_saved_fails_at_once(tmp_path: Path) -> None:
    saver = BackgroundSaver(tmp_path)
    with pytest.raises(CheckpointError, match="the value made cannot be saved"):
        saver.save(made=make)
    assert saver.wait() is None


def test_the_end_of_the_block_waits_and_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(CheckpointError, match="cannot be created"),
        BackgroundSaver(tmp_path / "file") as saver,
    ):
        saver.save(step=1)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no notes of exceptions")
def test_an_error_of_the_program_has_a_note_of_the_lost_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    def train() -> None:
        with BackgroundSaver(tmp_path / "file") as saver:
            saver.save(step=1)
            raise KeyError("own")

    with pytest.raises(KeyError, match="own") as caught:
        train()
    (note,) = caught.value.__notes__
    assert note.startswith("The last checkpoint was not saved: ")


class SlowDisk:
    """Holds every save that begins to write until it may end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = threading.Event()
        real = Disk.sync
        monkeypatch.setattr(Disk, "sync", lambda *args: self.may_end.wait(30) and real(*args))


def test_a_save_that_has_not_ended_in_time_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowDisk(monkeypatch)
    saver = BackgroundSaver(tmp_path / "a", timeout_seconds=0.01)
    saver.save(step=1)
    for call in (saver.wait, lambda: saver.save(step=2)):
        with pytest.raises(
            CheckpointError, match=r"has not ended after 0 s, and continues. The di"
        ):
            call()
    slow.may_end.set()
    deadline = time.monotonic() + 30
    while not [*(tmp_path / "a").glob("000001*")] and time.monotonic() < deadline:
        time.sleep(0.01)
    saver = BackgroundSaver(tmp_path / "a")  # the memory of the first may be in use
    saver.save(step=2)
    assert saver.wait() == tmp_path / "a" / "000002-step-2"
    assert saver.wait() is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no notes of exceptions")
def test_an_error_of_the_program_waits_for_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowDisk(monkeypatch)

    def train() -> None:
        with BackgroundSaver(tmp_path / "a") as saver:
            saver.save(step=1)
            threading.Timer(0.05, slow.may_end.set).start()
            raise KeyError("own")

    with pytest.raises(KeyError, match="own") as caught:
        train()
    assert not hasattr(caught.value, "__notes__")
    assert anyrig.load(tmp_path / "a").step == 1


def test_a_failure_is_reported_once_and_not_again_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[object] = []
    monkeypatch.setattr("atexit.register", kept.append)
    monkeypatch.setattr("atexit.unregister", kept.remove)
    (tmp_path / "file").write_text("")
    saver = BackgroundSaver(tmp_path / "file")
    saver.save(step=1)
    assert len(kept) == 1
    with pytest.raises(CheckpointError, match="cannot be created"):
        saver.wait()
    assert kept == []


ENDING = """
import sys, torch
from anyrig.checkpoint import BackgroundSaver
model = torch.nn.Linear(3000, 3000)
BackgroundSaver(sys.argv[1]).save(model=model, step=7)
"""


def end_after_a_save(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", ENDING, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_end_of_the_process_waits(tmp_path: Path) -> None:
    done = end_after_a_save(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert anyrig.load(tmp_path).step == 7


def test_a_failure_at_the_end_of_the_process_is_printed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = end_after_a_save(tmp_path / "file")
    assert done.stderr.startswith("anyrig: the last checkpoint was not saved: ")


@pytest.mark.gpus(1)
def test_copies_from_a_gpu_are_pinned_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(64, 64).cuda()
    expected = model.weight.detach().cpu()
    waited: list[torch.device] = []
    # A virtual GPU copies at once, so a wait that is missing would show on real GPUs only.
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    with BackgroundSaver(tmp_path) as saver:
        saver.save(model=model)
        assert waited == [model.weight.device]
        with torch.no_grad():
            model.weight.zero_()
        assert all(each.is_pinned() for each in saver._copies._buffers)
    anyrig.load(tmp_path, model=model)
    assert torch.equal(model.weight.cpu(), expected)
