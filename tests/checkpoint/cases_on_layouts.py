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
from resumed_training import train
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import anyrig
from anyrig.checkpoint import BackgroundSaver
from anyrig.checkpoint.snapshot_files import read_snapshot
from anyrig.errors import (
    CheckpointError,
    KeyMismatchError,
    OtherRankError,
    RankMismatchError,
    RankWaitError,
)

SAMPLES, BATCH_SIZE = 43, 6  # 8 batches, the last of one sample


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    # 5 and 7 rows are divided unevenly among 2 and 3 ranks, and 1 row leaves ranks without any.
    return nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 7), nn.Linear(7, 1))


def make_objects(layout: str) -> dict[str, Any]:
    """Return a model in a layout, its optimizer and its loader."""
    model: Any = make_model()
    if layout == "spread":
        model = anyrig.spread(model.to("cuda:0"), "cuda:0,1")
    elif layout == "ranks":
        model = anyrig.spread(model)
    elif layout == "shards":
        model = anyrig.spread(model, how="shard")
    elif layout == "plain DDP":
        anyrig.barrier()
        model = DistributedDataParallel(model)
    elif layout == "plain FSDP2":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    data = TensorDataset(torch.arange(SAMPLES))
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), 0.01),
        "loader": anyrig.distribute(DataLoader(data, BATCH_SIZE, shuffle=True), shares="even"),
    }


def train_steps(objects: dict[str, Any], steps: int) -> None:
    model, optimizer = objects["model"], objects["optimizer"]
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        optimizer.zero_grad()
        device = next(model.parameters()).device
        model(inputs.to(device)).square().mean().backward()
        optimizer.step()


def numbers_of(loader: Any, batches: int) -> list[int]:
    """Return the samples of this rank's next batches."""
    iterator = iter(loader)
    return [number for _ in range(batches) for number in next(iterator)[0].tolist()]


def content_of(folder: Path) -> dict[str, Any]:
    """Return all tensors of a checkpoint, and the options of its optimizer."""
    snapshot = read_snapshot(folder)
    state = snapshot.optimizers[""]
    tensors: dict[str, Any] = dict(snapshot.model or {})
    for name, parts in state.tensors.items():
        tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
    return tensors | {"groups": state.groups}


def assert_same_content(one: Path, other: Path) -> None:
    first, second = content_of(one), content_of(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        same = torch.equal(value, second[name]) if isinstance(value, Tensor) else None
        assert same if same is not None else value == second[name], name


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
    layouts = ["ranks", "shards", "plain DDP", "plain FSDP2"]
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


def case_the_disk_of_rank_0_is_full(folder: Path, sources: list[Path]) -> None:
    objects = make_objects("shards")
    anyrig.save(folder / "full", step=1, **objects)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        with pytest.raises((CheckpointError, OtherRankError), match=r"model.safetensors cannot be"):
            anyrig.save(folder / "full", step=2, **objects)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in (folder / "full").iterdir()] == ["000001-step-1"]
    assert anyrig.load(folder / "full", **objects).step == 1


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
    for layout in ("ranks", "shards"):
        objects = make_objects(layout)
        train_steps(objects, 2)
        series = folder / layout
        expected = anyrig.save(folder / f"{layout} at once", step=1, **objects)
        saver = BackgroundSaver(series)
        saver.save(step=1, **objects)
        train_steps(objects, 1)
        found = saver.wait()
        assert found == series / "000001-step-1"
        assert_same_content(found, expected)
        anyrig.barrier()
        if dist.get_rank() == 0:
            series.rename(folder / "aside")
            series.write_text("a file is in the way")
        anyrig.barrier()
        saver.save(step=2, **objects)
        with pytest.raises((CheckpointError, OtherRankError), match=r"created: it is a file"):
            saver.save(step=3, **objects)
        if dist.get_rank() == 0:
            series.unlink()
            (folder / "aside").rename(series)
        anyrig.barrier()
        saver.save(step=4, **objects)
        assert saver.wait() == series / "000002-step-4"


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
        case_the_disk_of_rank_0_is_full,
        case_a_rank_has_a_value_that_cannot_be_saved,
        case_ranks_save_to_different_paths,
        case_a_rank_has_another_model,
        case_random_numbers_of_each_rank_go_on,
        case_resumed_runs_end_with_the_same_bits,
        case_saves_in_the_background,
        case_ranks_resume_or_begin_together,
        case_a_rank_does_not_save,
    )
}


def run(folder: Path, sources: list[Path]) -> dict[str, str]:
    """Run all cases on this rank; return the tracebacks of those that failed on any rank."""
    failures: dict[str, str] = {}
    for name, case in CASES.items():
        inside = folder / name
        inside.mkdir(exist_ok=True)
        try:
            case(inside, sources)
        except Exception:
            failures[name] = f"rank {os.environ['RANK']}:\n{traceback.format_exc()}"
    own = json.dumps(failures)
    (folder / f"failures-{os.environ['RANK']}.json").write_text(own)
    return failures
