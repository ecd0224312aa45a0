"""What ranks do in `test_layouts.py`: layouts that save and load, and ranks that fail."""

from __future__ import annotations

import json
import os
import resource
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases_of_written_files import (
    case_each_file_is_hashed_by_one_rank,
    case_every_way_of_writing_has_the_same_content,
    case_parameters_that_ddp_ignores_are_written_by_rank_0,
    case_shards_that_cannot_be_written_are_refused,
    case_the_manifest_says_how_the_model_was_spread,
    case_tied_weights_in_shards_are_written_once,
    case_what_differs_between_ranks_is_written_by_rank_0,
)
from layout_objects import assert_same_content, make_model, make_objects, numbers_of, train_steps
from resumed_training import train
from torch import nn
from torch.utils.data import DataLoader

import anyrig
from anyrig.checkpoint import BackgroundSaver
from anyrig.errors import (
    CheckpointError,
    KeyMismatchError,
    OtherRankError,
    RankMismatchError,
    RankWaitError,
)
from anyrig.processes.group.membership import join_group
from anyrig.processes.time_limit import TIME_LIMIT_VARIABLE, set_time_limit


def move_on(layout: str, source: Path, target: Path) -> None:
    """Load a checkpoint, save it again, and take the next two batches and the next step."""
    objects = make_objects(layout)
    train_steps(objects, 1)  # so that the optimizer has a state, which must go
    found = anyrig.load(source, **objects)
    assert found["name"] == "kept"
    path = anyrig.save(target, name="kept", step=found.step, **objects)
    assert_same_content(found.path, path)
    loader = objects["loader"]
    received = loader.state_dict()["received"]
    seen = numbers_of(loader, 2)
    train_steps(objects, 1)
    (target / f"seen-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(seen))
    assert loader.state_dict()["received"] == received + 2


# Cases of any number of ranks.


def case_layouts(folder: Path, sources: list[Path]) -> None:
    layouts = ["ranks", "shards", "plain DDP", "plain FSDP2", "pipeline"]
    for source in sources:
        for layout in layouts:
            move_on(layout, source, folder / f"{source.name} by {layout}")


def case_rank_0_cannot_write(folder: Path, sources: list[Path]) -> None:
    blocked = folder / "blocked"
    if dist.get_rank() == 0:
        blocked.write_text("a file")
    anyrig.barrier()
    for layout in ("ranks", "shards"):
        objects = make_objects(layout)
        with pytest.raises((CheckpointError, OtherRankError)) as caught:
            anyrig.save(blocked, **objects)
        if dist.get_rank() == 0:
            assert "blocked cannot be created: it is a file" in str(caught.value)
        else:
            assert str(caught.value).startswith("rank 0 failed in anyrig.save(): Checkpoint")
        anyrig.save(folder / f"after {layout}", **objects)


def case_the_disk_of_a_rank_is_full(folder: Path, sources: list[Path]) -> None:
    last = dist.get_world_size() - 1
    for culprit, sharded in ((0, False), (0, None), (last, None)):
        objects, series = make_objects("shards"), folder / f"{culprit} {sharded}"
        anyrig.save(series, step=1, sharded=sharded, **objects)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if dist.get_rank() == culprit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
        file = "model" if sharded is False else f"model.shard.0000{culprit + 1}-of-0000{last + 1}"
        try:
            with pytest.raises((CheckpointError, OtherRankError)) as caught:
                anyrig.save(series, step=2, sharded=sharded, **objects)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert f"/{file}.safetensors cannot be written: File too large" in str(caught.value)
        if dist.get_rank() != culprit:
            assert str(caught.value).startswith(f"rank {culprit} failed in anyrig.save(): Checkp")
        assert [path.name for path in series.iterdir()] == ["000001-step-1"]
        assert anyrig.load(series, **objects).step == 1


def case_ranks_with_other_tensors_cannot_save_together(folder: Path, sources: list[Path]) -> None:
    model = nn.Linear(3, 3 + (dist.get_rank() == 1))
    with pytest.raises(
        RankMismatchError, match=r"with tensors '2 \(names, .*rank 1 with '2 \(name"
    ):
        anyrig.save(folder / "a", model=model, sharded=True)
    assert not (folder / "a").exists()


def case_a_rank_has_a_value_that_cannot_be_saved(folder: Path, sources: list[Path]) -> None:
    odd = object() if dist.get_rank() == 1 else 1
    anyrig.save(folder / "odd", value=1 if odd == 1 else 2)  # rank 0's values are saved
    assert anyrig.load(folder / "odd")["value"] == 1
    loader = [] if dist.get_rank() == 1 else anyrig.distribute(DataLoader([1]), divided=True)
    if dist.get_rank() == 1:
        anyrig.distribute(DataLoader([1]), divided=True)
    with pytest.raises((CheckpointError, OtherRankError), match="list, which has no state_dict"):
        anyrig.save(folder / "odd", loader=loader)


def case_ranks_save_to_different_paths(folder: Path, sources: list[Path]) -> None:
    with pytest.raises(RankMismatchError, match=r"rank 0 calls anyrig.save\(\) with path '.*/0', "):
        anyrig.save(folder / str(dist.get_rank()))
    with pytest.raises(RankMismatchError, match="with step 0, rank 1 with 1; pass the same"):
        anyrig.save(folder / "a", step=dist.get_rank())
    with pytest.raises(
        RankMismatchError, match=r"with sharded None, rank 1 with False; pass the s"
    ):
        anyrig.save(folder / "a", sharded=False if dist.get_rank() == 1 else None)
    assert not (folder / "a").exists()


def case_a_rank_has_another_model(folder: Path, sources: list[Path]) -> None:
    model = make_model()
    anyrig.save(folder / "model", model=model)
    if dist.get_rank() == 1:
        model.append(nn.Linear(1, 1))
    before = [each.clone() for each in model.parameters()]
    for each in model.parameters():
        each.data.zero_()
    with pytest.raises((KeyMismatchError, OtherRankError), match=r"has no 4.bias, 4.weight"):
        anyrig.load(folder / "model", model=model)
    assert all(not each.any() for each in model.parameters())
    assert len(before) == len([*model.parameters()])


def case_a_rank_does_not_save(folder: Path, sources: list[Path]) -> None:
    last = dist.get_world_size() - 1
    if dist.get_rank() != last:
        with pytest.raises(RankWaitError, match=rf"at anyrig.save\(\) .* rank {last} did not take"):
            anyrig.save(folder / "late", timeout_seconds=0.3)
    else:
        time.sleep(0.6)
        with pytest.raises(RankWaitError, match=r"waited at anyrig.save\(\)"):
            anyrig.save(folder / "late", timeout_seconds=0.3)


def case_random_numbers_of_each_rank_go_on(folder: Path, sources: list[Path]) -> None:
    torch.manual_seed(dist.get_rank())
    anyrig.save(folder / "random")
    drawn = torch.rand(3)
    assert anyrig.load(folder / "random", random_numbers=True).left == ()
    assert torch.equal(torch.rand(3), drawn)
    (left,) = anyrig.load(sources[0], random_numbers=True).left
    assert left.startswith("random numbers: saved by 1 rank, loaded by ")


def case_resumed_runs_end_with_the_same_bits(folder: Path, sources: list[Path]) -> None:
    if dist.get_world_size() != 2:
        return
    expected = train(folder / "never", None, anyrig.spread, workers=2)
    for stop in (3, 14):
        train(folder / "resumed", stop, anyrig.spread, workers=2)
    resumed = train(folder / "resumed", None, anyrig.spread, workers=2)
    for name, value in expected.items():
        assert torch.equal(value, resumed[name]), name


def case_saves_in_the_background(folder: Path, sources: list[Path]) -> None:
    for layout, sharded in (("ranks", None), ("ranks", True), ("shards", None)):
        objects = make_objects(layout)
        train_steps(objects, 2)
        series = folder / f"{layout} {sharded}"
        expected = anyrig.save(folder / f"{layout} at once", step=1, sharded=sharded, **objects)
        saver = BackgroundSaver(series, keep=1, sharded=sharded)
        saver.save(step=1, **objects)
        train_steps(objects, 1)
        found = saver.wait()
        assert found == series / "000001-step-1"
        assert_same_content(found, expected)
        files = {each.name for each in expected.iterdir()}
        assert {each.name for each in found.iterdir()} == files
        assert any("-of-0000" in each for each in files) == bool(sharded or layout == "shards")
        anyrig.barrier()
        if dist.get_rank() == 0:
            series.rename(folder / "aside")
            series.write_text("a file is in the way")
        anyrig.barrier()
        with pytest.raises((CheckpointError, OtherRankError), match=r"created: it is a file"):
            save_twice(saver, objects)
        if dist.get_rank() == 0:
            series.unlink()
            (folder / "aside").rename(series)
        anyrig.barrier()
        saver.save(step=4, **objects)
        assert saver.wait() == series / "000002-step-4"
        assert [each.name for each in series.iterdir()] == ["000002-step-4"]
        anyrig.barrier()


def save_twice(saver: BackgroundSaver, objects: dict[str, Any]) -> None:
    saver.save(step=2, **objects)  # if all ranks write, the first call raises
    saver.save(step=3, **objects)


def case_ranks_resume_or_begin_together(folder: Path, sources: list[Path]) -> None:
    model = make_model()
    assert anyrig.resume(folder / "none", model=model) is None
    anyrig.save(folder / "some", model=model, step=5)
    found = anyrig.resume(folder / "some", model=model)
    assert found is not None
    assert found.step == 5
    with pytest.raises((CheckpointError, OtherRankError), match="is a single checkpoint"):
        anyrig.resume(found.path, model=model)


# The last case ends with ranks that disagree about the number of calls.
CASES: dict[str, Callable[[Path, list[Path]], None]] = {
    case.__name__.removeprefix("case_"): case
    for case in (
        case_layouts,
        case_rank_0_cannot_write,
        case_the_disk_of_a_rank_is_full,
        case_every_way_of_writing_has_the_same_content,
        case_tied_weights_in_shards_are_written_once,
        case_ranks_with_other_tensors_cannot_save_together,
        case_what_differs_between_ranks_is_written_by_rank_0,
        case_each_file_is_hashed_by_one_rank,
        case_a_rank_has_a_value_that_cannot_be_saved,
        case_ranks_save_to_different_paths,
        case_the_manifest_says_how_the_model_was_spread,
        case_parameters_that_ddp_ignores_are_written_by_rank_0,
        case_shards_that_cannot_be_written_are_refused,
        case_a_rank_has_another_model,
        case_random_numbers_of_each_rank_go_on,
        case_resumed_runs_end_with_the_same_bits,
        case_saves_in_the_background,
        case_ranks_resume_or_begin_together,
        case_a_rank_does_not_save,
    )
}


def run(work: str, sources: list[str]) -> None:
    """Run all cases on this rank, and write the tracebacks of those that failed to a file."""
    os.environ[TIME_LIMIT_VARIABLE] = "60"  # a case that fails on some ranks lets the others wait
    set_time_limit()
    join_group()
    folder = Path(work)
    failures: dict[str, str] = {}
    for name, case in CASES.items():
        inside = folder / name
        inside.mkdir(exist_ok=True)
        started = time.perf_counter()
        try:
            case(inside, [Path(source) for source in sources])
        except Exception:
            failures[name] = f"rank {os.environ['RANK']}:\n{traceback.format_exc()}"
        if os.environ.get("ANYRIG_TEST_TIMES") and dist.get_rank() == 0:
            print(f"{time.perf_counter() - started:6.2f} s  {name}", flush=True)
    own = json.dumps(failures)
    (folder / f"failures-{os.environ['RANK']}.json").write_text(own)
    dist.destroy_process_group()
