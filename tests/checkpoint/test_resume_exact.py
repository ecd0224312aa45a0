"""Runs with logical shards continue with the same bits on any number of ranks, or refuse."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anyrig
from anyrig.checkpoint.snapshot_files import read_snapshot
from anyrig.errors import CheckpointError
from forked_programs import run_forked


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def resume_after_kills(folder: Path, how: str, kills: int) -> None:
    script = Path(__file__).with_name("killed_exact.py")
    done = run_forked(str(script), str(folder), how, str(kills), timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed") == kills


@pytest.mark.parametrize("how", [pytest.param("replicate", marks=pytest.mark.sweep), "shard"])
def test_killed_ranks_resume_on_another_number(how: str, tmp_path: Path) -> None:
    resume_after_kills(tmp_path, how, 3)


@pytest.mark.sweep
@pytest.mark.parametrize("how", ["replicate", "shard"])
def test_twenty_kills(how: str, tmp_path: Path) -> None:
    resume_after_kills(tmp_path, how, 20)


def make_objects(shards: int = 4, loader_shards: int | None = 4, **options: Any) -> dict[str, Any]:
    model = anyrig.spread(
        nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5)),
        "cpu",
        plan=anyrig.Exact(shards),
        loss=nn.MSELoss(),
        **options,
    )
    data = TensorDataset(torch.arange(16.0).view(16, 1))
    divides = None
    if loader_shards is not None:
        other = anyrig.Exact(loader_shards)
        divides = anyrig.spread(nn.Linear(1, 1), "cpu", plan=other, loss=nn.MSELoss())
    loader = anyrig.distribute(DataLoader(data, 8), divides)
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "loader": loader,
    }


def refuses(message: str, folder: Path, **objects: Any) -> None:
    before = {name: each.clone() for name, each in objects["model"].state_dict().items()}
    with pytest.raises(CheckpointError, match=message):
        anyrig.resume(folder, exact=True, **objects)
    for name, value in objects["model"].state_dict().items():
        assert torch.equal(value, before[name])


def test_random_numbers_of_the_model_go_on(tmp_path: Path) -> None:
    objects = make_objects()
    x = torch.ones(8, 1)
    objects["model"](x, target=x)
    anyrig.save(tmp_path, **objects)
    expected = objects["model"](x, target=x).item()
    torch.manual_seed(99)
    objects = make_objects()
    assert anyrig.resume(tmp_path, exact=True, **objects).left == ()  # type: ignore[union-attr]
    assert objects["model"]._engine.state.step == 1
    assert objects["model"](x, target=x).item() == expected
    plain = {"model": nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5))}
    anyrig.load(tmp_path, **plain)  # an inexact run continues from an exact one


def test_refusals_before_the_first_checkpoint(tmp_path: Path) -> None:
    none = tmp_path / "none"
    objects = make_objects()
    refuses("adds up gradients in an order that depends on the num", none, model=nn.Linear(1, 1))
    refuses("pass the optimizer", none, **{**objects, "optimizer": None})
    refuses("the loader must divide batches into 4 logical", none, **{**objects, "loader": None})
    refuses("the loader must divide batches into 4", none, **make_objects(4, None))
    refuses("the loader must divide batches into 4", none, **make_objects(4, 8))
    fused = torch.optim.Adam(objects["model"].parameters(), fused=True)
    refuses("use fused=False", none, **{**objects, "optimizer": fused})


def test_refusals_of_checkpoints(tmp_path: Path) -> None:
    objects = make_objects()
    anyrig.save(tmp_path / "a", **objects)
    refuses(
        "saved with logical shards 4, and this training has 8", tmp_path / "a", **make_objects(8, 8)
    )
    refuses(
        "saved with precision 'None', and this training has 'torch.bfloat16'",
        tmp_path / "a",
        **make_objects(precision="bfloat16"),
    )
    anyrig.save(tmp_path / "b", **{**objects, "loader": make_objects(4, None)["loader"]})
    refuses("a loader that did not divide batches", tmp_path / "b", **objects)
    scheduler = torch.optim.lr_scheduler.StepLR(objects["optimizer"], 2)
    anyrig.save(tmp_path / "f", **objects, scheduler=scheduler)
    refuses("has a state of scheduler; pass scheduler, too", tmp_path / "f", **objects)
    anyrig.save(tmp_path / "c", **objects, ema=nn.Linear(1, 1))
    refuses("has a state of ema; pass ema, too", tmp_path / "c", **objects)
    two = {"first": objects["optimizer"]}
    two["second"] = torch.optim.SGD(objects["model"].parameters(), 0.1)
    anyrig.save(tmp_path / "e", **{**objects, "optimizer": two})
    one = {"first": two["first"]}
    refuses(
        "has a state of second; pass second, too", tmp_path / "e", **{**objects, "optimizer": one}
    )
    plain = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5))
    optimizer = torch.optim.Adam(plain.parameters())
    anyrig.save(tmp_path / "d", model=plain, optimizer=optimizer, loader=objects["loader"])
    refuses("was not saved by a training run with logical shards", tmp_path / "d", **objects)


def test_ranks_that_drew_other_random_numbers(tmp_path: Path, monkeypatch: Any) -> None:
    objects = make_objects()
    found = anyrig.save(tmp_path, **objects)
    snapshot = read_snapshot(found)
    torch.rand(1)
    other = read_snapshot(anyrig.save(tmp_path / "other", **objects))
    from anyrig.checkpoint import load as loading

    two = {"random": [*snapshot.random, *other.random]}
    changed = type(snapshot)(**{**vars(snapshot), **two})
    monkeypatch.setattr(loading, "read_snapshot", lambda folder, files: changed)
    refuses("rank 1 had different random numbers from rank 0", tmp_path, **objects)


@pytest.mark.parametrize(
    ("draws", "names"),
    [
        ([], ""),
        ([random.random], "Python"),
        ([np.random.rand], "NumPy"),
        ([random.random, np.random.rand], "Python and NumPy"),
    ],
)
def test_random_numbers_that_are_not_seeded_alike_are_those_of_rank_0(
    draws: list[Any], names: str, tmp_path: Path, monkeypatch: Any
) -> None:
    objects = make_objects()
    found = anyrig.save(tmp_path, **objects)
    snapshot = read_snapshot(found)
    expected = random.random(), float(np.random.rand())
    anyrig.load(tmp_path, model=objects["model"], random_numbers=True)
    for draw in draws:
        draw()
    other = read_snapshot(anyrig.save(tmp_path / "other", **objects))
    from anyrig.checkpoint import load as loading

    two = {"random": [*snapshot.random, *other.random]}
    changed = type(snapshot)(**{**vars(snapshot), **two})
    monkeypatch.setattr(loading, "read_snapshot", lambda folder, files: changed)
    left = anyrig.load(tmp_path, exact=True, **objects).left
    told = f"random numbers of {names}: they differed between the ranks, which the script did not "
    assert [each.startswith(told) for each in left] == [True] * bool(names)
    assert (random.random(), float(np.random.rand())) == expected
