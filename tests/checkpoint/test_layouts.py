"""Saved by one process, spread, DDP and FSDP2, and loaded by any of them."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import cases_on_layouts
import pytest
import torch
from cases_on_layouts import CASES, move_on
from layout_objects import (
    BATCH_SIZE,
    SAMPLES,
    assert_same_content,
    make_objects,
    numbers_of,
    train_steps,
)

import anyrig
from anyrig.checkpoint.any_model import read_any_model
from anyrig.errors import LaunchError
from forked_ranks import run_forked

LAYOUTS = ["ranks", "shards", "plain DDP", "plain FSDP2", "pipeline"]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@cache
def source(work: Path) -> Path:
    """Return a checkpoint of one process in the middle of an epoch."""
    objects = make_objects("one")
    train_steps(objects, 3)
    seen = numbers_of(objects["loader"], 2)
    anyrig.save(work / "one", name="kept", step=3, **objects)
    (work / "one" / "seen-0.json").write_text(json.dumps(seen))
    return work / "one"


@cache
def spread_source(work: Path) -> Path:
    """Return the checkpoint after two more batches, by replicas on two devices."""
    move_on("spread", source(work), work / "spread")
    return work / "spread"


@cache
def failures(work: Path, ranks: int) -> dict[str, str]:
    folder = work / str(ranks)
    folder.mkdir()
    sources = [source(work), spread_source(work)]
    if ranks == 2:  # what three ranks have saved before
        assert failures(work, 3) == {}
        sources = [sources[0]] + [work / "3" / "layouts" / f"one by {layout}" for layout in LAYOUTS]
    arguments = [str(folder), [str(each) for each in sources]]
    run_forked(cases_on_layouts.__file__, "run", arguments, ranks)
    found: dict[str, str] = {}
    for rank in range(ranks):
        for case, trace in json.loads((folder / f"failures-{rank}.json").read_text()).items():
            found[case] = found.get(case, "") + trace
    return found


@pytest.mark.gpus(2)
@pytest.mark.parametrize("ranks", [3, pytest.param(2, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("case", CASES)
def test_on_ranks(case: str, ranks: int, work: Path) -> None:
    found = failures(work, ranks)
    assert case not in found, found[case]


@pytest.mark.gpus(2)
def test_one_process_does_not_take_the_random_numbers_of_ranks(work: Path) -> None:
    failures(work, 3)
    name = "random_numbers_of_each_rank_go_on"
    (left,) = anyrig.load(work / "3" / name / "random", random_numbers=True).left
    assert left.startswith("random numbers: saved by 3 ranks, loaded by 1;")


def seen_in(folder: Path) -> list[int]:
    return [n for path in folder.glob("seen-*.json") for n in json.loads(path.read_text())]


@pytest.mark.gpus(2)
class TestWayThroughLayouts:
    """One process, then three ranks, then two ranks, then one process: one epoch."""

    @pytest.mark.parametrize("first", LAYOUTS)
    @pytest.mark.parametrize("second", LAYOUTS)
    def test_no_sample_is_skipped_or_seen_twice(self, first: str, second: str, work: Path) -> None:
        assert failures(work, 2) == {}
        by_three = work / "3" / "layouts" / f"one by {first}"
        by_two = work / "2" / "layouts" / f"{by_three.name} by {second}"
        # Each saves before its own two batches, so the checkpoints have the position of the first.
        assert sorted(seen_in(by_three)) == sorted(seen_in(by_two))
        objects = make_objects("one")
        anyrig.load(by_two, **objects)
        rest = [number for batch in objects["loader"] for number in batch[0].tolist()]
        assert sorted(seen_in(work / "one") + rest) == list(range(SAMPLES))
        assert len(rest) == SAMPLES - 2 * BATCH_SIZE
        ours = sorted(rest[: 2 * BATCH_SIZE])
        assert sorted(seen_in(by_two)) == ours

    def test_all_write_the_same_tensors(self, work: Path) -> None:
        assert failures(work, 2) == {}
        (first,) = source(work).glob("000001*")
        for folder in (work / "2" / "layouts").iterdir():
            (path,) = folder.glob("000001*")
            assert_same_content(first, path)
            model = read_any_model(path).tensors
            assert model.keys() == make_objects("one")["model"].state_dict().keys()
            is_in_shards = folder.name.endswith(("shards", "FSDP2"))
            assert (path / "model.safetensors").exists() != is_in_shards

    def test_a_step_on_ranks_is_the_step_of_one_process(self, work: Path) -> None:
        one, other = make_objects("one"), make_objects("spread")
        for objects in (one, other):
            anyrig.load(source(work), **objects)
            train_steps(objects, 2)
        for name, value in one["model"].state_dict().items():
            torch.testing.assert_close(other["model"].state_dict()[name].cpu(), value)


@pytest.mark.sweep
@pytest.mark.gpus(4)
def test_every_sharding_on_four_gpus(work: Path) -> None:
    (first,) = source(work).glob("000001*")
    target = work / "four"

    def save_again() -> list[str]:
        options: list[dict[str, Any]] = [
            {},
            {"plan": anyrig.Shards()},
            {"plan": anyrig.Shards(offload=True)},
            {"plan": anyrig.Shards(replicas=2)},
        ]
        saved = []
        for each in options:
            layers = (torch.nn.Linear(4, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 7))
            model = anyrig.spread(torch.nn.Sequential(*layers, torch.nn.Linear(7, 1)), **each)
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(2):  # before the load, and after
                model(torch.ones(8, 4)).sum().backward()
                optimizer.step()
                anyrig.load(first, model=model, optimizer=optimizer)
            saved.append(str(anyrig.save(target, model=model, optimizer=optimizer)))
        return saved

    for path in anyrig.launch(save_again, rig="cuda:0,1,2,3"):
        assert_same_content(first, Path(path))


def save_on_ranks_until_killed(folder: Path, seconds: float, victim: int) -> int:
    """Let four ranks save shards in a loop, kill one, and return the last announced step."""

    def save_in_a_loop() -> None:
        import os

        model = anyrig.spread(torch.nn.Linear(16, 16), plan=anyrig.Shards())
        rank, step = os.environ["RANK"], 0
        if folder.exists():
            step = anyrig.load(folder, model=model).step or 0
        while True:
            step += 1
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(step)
            anyrig.save(folder, model=model, step=step, keep=2)
            with folder.with_name(f"announced-{rank}").open("a") as file:
                file.write(f"{step}\n")
            if rank == str(victim):
                folder.with_name("victim").write_text(str(os.getpid()))

    def kill() -> None:
        file = folder.with_name("victim")
        deadline = time.monotonic() + 60
        while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(seconds)
        os.kill(int(file.read_text()), signal.SIGKILL)
        file.unlink()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(LaunchError):
        anyrig.launch(save_in_a_loop, rig="cpu", nproc_per_device=4)
    killer.join()
    announced = [path.read_text().split() for path in folder.parent.glob("announced-*")]
    return max(int(steps[-1]) for steps in announced if steps)


@pytest.mark.sweep
@pytest.mark.parametrize("kill", range(10))
def test_a_killed_rank_loses_no_announced_checkpoint(kill: int, tmp_path: Path) -> None:
    draw = random.Random(kill)
    for _ in range(2):
        victim = draw.randrange(4)
        announced = save_on_ranks_until_killed(tmp_path / "a", draw.uniform(0, 0.2), victim)
        model = torch.nn.Linear(16, 16)
        found = anyrig.load(tmp_path / "a", model=model)
        assert found.step in (announced, announced + 1)
        assert all((each == found.step).all() for each in model.parameters())
