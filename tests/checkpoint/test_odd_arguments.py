"""Odd arguments, names and folders: refused by name before anything is written, or saved."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anyrig
from anyrig.checkpoint import BackgroundSaver
from anyrig.checkpoint.savable_names import ARGUMENTS_OF_LOAD
from anyrig.checkpoint.values_file import decode_values
from anyrig.errors import CheckpointError, UnsafeFileError


def sgd(rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=rate)


def rate_of(optimizer: torch.optim.Optimizer) -> float:
    rate: float = optimizer.param_groups[0]["lr"]
    return rate


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keep": 1.5}, "keep must be a whole number; got 1.5"),
        ({"keep": "2"}, "keep must be a whole number; got '2'"),
        ({"keep": [1]}, r"keep must be a whole number; got \[1\]"),
        ({"keep": float("nan")}, "keep must be a whole number; got nan"),
        ({"keep": -1}, "keep is the number of checkpoints to keep, at least 1; got -1"),
        ({"step": 2**63}, r"step must be below 2\*\*63"),
        ({"step": 10**5000}, r"step must be below 2\*\*63"),
        ({"step": "7"}, "step must be a whole number; got '7'"),
        ({"metric": "0.5", "best": "max"}, "metric must be a number of float64; got '0.5'"),
        ({"metric": 10**400, "best": "max"}, "metric must be a number of float64; got 1000"),
        ({"metric": torch.ones(2), "best": "max"}, "metric must be a number of float64; got tens"),
        ({"metric": [1.0], "best": "min"}, r"metric must be a number of float64; got \[1.0\]"),
    ],
)
def test_an_odd_argument_is_named_before_anything_is_written(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        anyrig.save(tmp_path / "a", model=nn.Linear(1, 1), **given)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("metric", [1, 0.5, float("inf"), torch.tensor(2.0)])
def test_numbers_are_metrics(metric: Any, tmp_path: Path) -> None:
    anyrig.save(tmp_path / "a", model=nn.Linear(1, 1), metric=metric, best="max", keep=1)
    assert anyrig.load(tmp_path / "a", model=nn.Linear(1, 1), which="best").metric == metric


@pytest.fixture
def vanished(tmp_path: Path) -> Iterator[None]:
    """The working folder does not exist any more."""
    before = Path.cwd()
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    yield
    os.chdir(before)


def calls(path: Any) -> Iterator[Any]:
    net = nn.Linear(1, 1)
    yield lambda: anyrig.save(path, model=net)
    yield lambda: anyrig.load(path, model=net)
    yield lambda: anyrig.resume(path, model=net)
    yield lambda: BackgroundSaver(path).save(model=net)


@pytest.mark.usefixtures("vanished")
def test_a_vanished_working_folder_is_named() -> None:
    for call in calls("runs/a"):
        with pytest.raises(CheckpointError, match=r"path is 'runs/a', and the working folder"):
            call()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/tmp/a\0b", r"path is '/tmp/a\\x00b', and no file can have a null byte in its name"),
        (5, "path must be a string or a pathlib.Path; got 5"),
        (b"/tmp/a", r"path must be a string or a pathlib.Path; got b'/tmp/a'"),
        (None, "path must be a string or a pathlib.Path; got None"),
    ],
)
def test_what_is_no_path_is_named(path: Any, message: str) -> None:
    for call in calls(path):
        with pytest.raises(CheckpointError, match=message):
            call()


@pytest.mark.parametrize("path", ["/".join(["d" * 200] * 25), "d" * 256])
def test_a_path_that_is_too_long_is_named(path: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be created: File name too long\. Shorten"):
        anyrig.save(tmp_path / path, model=nn.Linear(1, 1))
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(CheckpointError, match="cannot be read: File name too long"):
        anyrig.load(tmp_path / path, model=nn.Linear(1, 1))
    with pytest.raises(CheckpointError, match="cannot be read: File name too long"):
        anyrig.resume(tmp_path / path, model=nn.Linear(1, 1))


@pytest.mark.parametrize(
    "name",
    ["9" * 250, "9" * 15, "9" * 16, "000002", "9" * 14 + "8", "٠٠٠٠٠٩", "000009-step-" + "7" * 200],
)
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_folder_with_an_odd_number_blocks_no_save(
    name: str, is_empty: bool, tmp_path: Path
) -> None:
    anyrig.save(tmp_path / "a", model=nn.Linear(1, 1), step=1)
    (tmp_path / "a" / name).mkdir()
    if not is_empty:
        (tmp_path / "a" / name / "notes.txt").touch()
    for step in (2, 3, 4):
        anyrig.save(tmp_path / "a", model=nn.Linear(1, 1), step=step, keep=2)
    assert (tmp_path / "a" / name).exists()
    found = [path.name for path in (tmp_path / "a").glob("*-step-[0-9]")]
    assert len(found) == 2
    assert anyrig.load(tmp_path / "a" / max(found), model=nn.Linear(1, 1)).step == 4


def test_a_checkpoint_renamed_to_the_largest_number_is_named(tmp_path: Path) -> None:
    folder = anyrig.save(tmp_path / "a", model=nn.Linear(1, 1))
    folder.rename(folder.with_name("9" * 15))
    with pytest.raises(CheckpointError, match=r"9{15} has the largest number .* Rename the folder"):
        anyrig.save(tmp_path / "a", model=nn.Linear(1, 1))


def test_keys_of_two_types_are_kept_apart(tmp_path: Path) -> None:
    rates = {1: 0.1, "1": 0.2, 2: 0.3}
    anyrig.save(tmp_path / "a", optimizer={key: sgd(rate) for key, rate in rates.items()})
    for given in (rates, {1: 0.1}, {"1": 0.2}, {2: 0.3}, {"2": 0.3}):
        fresh = {key: sgd(9.0) for key in given}
        anyrig.load(tmp_path / "a", optimizer=fresh)
        assert {key: rate_of(each) for key, each in fresh.items()} == given


def test_keys_of_schedulers_are_kept_apart(tmp_path: Path) -> None:
    def make(epochs: int) -> Any:
        scheduler = torch.optim.lr_scheduler.ConstantLR(sgd(1.0))
        scheduler.last_epoch = epochs
        return scheduler

    anyrig.save(tmp_path / "a", scheduler={0: make(1), "0": make(2)})
    fresh: dict[Any, Any] = {0: make(9), "0": make(9)}
    anyrig.load(tmp_path / "a", scheduler=fresh)
    assert [each.last_epoch for each in fresh.values()] == [1, 2]


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"optimizer": {1: sgd(1), "1": sgd(2), "1-int": sgd(3)}},
            "keys that are saved as '1-int'",
        ),
        ({"optimizer": {"é": sgd(1)}}, r"optimizer has the key 'é', .* Use another key"),
        ({"optimizer": {"a" * 250: sgd(1)}}, "has 260 characters, more than 200. Use another key"),
        ({"which": nn.Linear(1, 1)}, "saved as which=, which is an argument of load"),
        ({"verify": Counter()}, "saved as verify=, which is an argument of load"),
        ({"scheduler": {"a": Counter()}, "scheduler.a": Counter()}, "saved as 'scheduler.a', whi"),
        ({"exact-state": Counter()}, "an object is saved as 'exact-state'"),
        ({"../a": nn.Linear(1, 1)}, "a module is saved as '../a'"),
        ({".a": nn.Linear(1, 1)}, "a module is saved as '.a'"),
        ({"\ud800": nn.Linear(1, 1)}, "a module is saved as"),
        ({"a\n": nn.Linear(1, 1)}, "a module is saved as"),
        ({"a-00001-of-00001": nn.Linear(1, 1)}, "but ends like the number of a file"),
    ],
)
def test_a_name_that_cannot_be_kept_is_refused_before_anything_is_written(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        anyrig.save(tmp_path / "a", **given)
    assert not (tmp_path / "a").exists()


def test_objects_of_every_other_name_can_be_loaded() -> None:
    of_save = inspect.signature(anyrig.save).parameters
    only_of_load = [
        each for each in inspect.signature(anyrig.load).parameters if each not in of_save
    ]
    shared = ["path", "timeout_seconds"]
    assert {*only_of_load, *shared} - {"objects"} <= {*ARGUMENTS_OF_LOAD}


@pytest.mark.parametrize("names", [("critic/0.weight", "critic"), ("critic/0", "critic")])
def test_parameters_that_look_alike_are_refused(names: tuple[str, str], tmp_path: Path) -> None:
    actor, critic = nn.Module(), nn.Sequential(nn.Linear(1, 1))
    first = names[0].partition(".")[0]
    actor.add_module(first, nn.Linear(1, 1))
    optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], 0.1, momentum=0.9)
    with pytest.raises(CheckpointError, match=r"two parameters have the name 'critic/0\.weight'"):
        anyrig.save(tmp_path / "a", model=actor, critic=critic, optimizer=optimizer)
    assert not (tmp_path / "a").exists()


def test_a_parameter_named_like_one_of_no_model_is_refused(tmp_path: Path) -> None:
    net = nn.Module()
    net.register_parameter("parameter 0 of group 0", nn.Parameter(torch.ones(1)))
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1)), *net.parameters()], 0.1)
    with pytest.raises(CheckpointError, match="two parameters that are named 'parameter 0 of grou"):
        anyrig.save(tmp_path / "a", model=net, optimizer=optimizer)


READS_JAGGED = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)


@pytest.mark.skipif(READS_JAGGED, reason="PyTorch up to 2.14 reads jagged nested tensors")
def test_a_jagged_nested_tensor_is_refused_with_what_to_save(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    with pytest.raises(CheckpointError, match=r"value prompts .*jagged .*its values\(\) and"):
        anyrig.save(tmp_path / "a", prompts=nested)
    assert not (tmp_path / "a").exists()
    torch.save({"prompts": nested}, tmp_path / "values.pt")  # as an older PyTorch has saved it
    with pytest.raises(UnsafeFileError, match=r"values\.pt has a jagged .*PyTorch 2\.14"):
        decode_values(tmp_path / "values.pt")


@pytest.mark.skipif(not READS_JAGGED, reason="PyTorch 2.15 does not read jagged nested tensors")
def test_a_jagged_nested_tensor_is_loaded_by_a_new_process(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    anyrig.save(tmp_path / "a", prompts=nested)
    # Not forked: a process that has used compiled code has allowed the class already.
    program = "import sys, anyrig; print(anyrig.load(sys.argv[1])['prompts'].size(0))"
    words = [sys.executable, "-c", program, str(tmp_path / "a")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


class Setting:
    pass


def test_a_class_that_only_this_process_allows_is_refused(tmp_path: Path) -> None:
    for value in (Setting(), [Setting()], {"a": Setting()}):
        with (
            torch.serialization.safe_globals([Setting]),
            pytest.raises(
                CheckpointError, match=r"^the value note.* cannot be saved: it is of type"
            ),
        ):
            anyrig.save(tmp_path / "a", model=nn.Linear(1, 1), note=value)
    assert not (tmp_path / "a").exists()


def test_what_cannot_be_read_again_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Linear(1, 1)
    first = anyrig.save(tmp_path / "a", model=net)
    encode = "anyrig.checkpoint.tensor_files.encode_safetensors"
    monkeypatch.setattr(encode, lambda sources, metadata: [b"half of a header"])
    with pytest.raises(CheckpointError, match=re.escape("what was saved cannot be loaded")):
        anyrig.save(tmp_path / "a", model=net, keep=1)
    assert [*(tmp_path / "a").iterdir()] == [first]


def test_what_would_be_read_differently_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Linear(1, 1)
    first = anyrig.save(tmp_path / "a", model=net)
    monkeypatch.setattr("anyrig.checkpoint.capture.fits_safetensors", lambda value: False)
    real = anyrig.checkpoint.snapshot_files.encode_values
    lossy = lambda values: real({**values, "modules": {"model": {}}})  # noqa: E731
    monkeypatch.setattr("anyrig.checkpoint.snapshot_files.encode_values", lossy)
    with pytest.raises(
        CheckpointError, match="what was saved of model would be loaded differently"
    ):
        anyrig.save(tmp_path / "a", model=net, keep=1)
    assert [*(tmp_path / "a").iterdir()] == [first]


def test_a_child_that_is_named_as_in_compiled_modules_hides_no_others(tmp_path: Path) -> None:
    def make() -> nn.Module:
        net = nn.Module()
        net.add_module("_orig_mod", nn.Linear(1, 1))
        net.add_module("head", nn.Linear(2, 2))
        return net

    saved, loaded = make(), make()
    anyrig.save(tmp_path / "a", model=saved)
    anyrig.load(tmp_path / "a", model=loaded)
    torch.testing.assert_close(loaded.state_dict(), saved.state_dict(), rtol=0, atol=0)
