"""What ranks do in `test_layouts.py`: layouts that save and load, and ranks that fail."""

from __future__ import annotations

import copy
import json
import os
import re
import resource
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from resumed_training import train
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import anyrig
from anyrig.checkpoint import BackgroundSaver, read_manifest, verify_folder
from anyrig.checkpoint.any_model import read_any_model
from anyrig.checkpoint.compare import compare
from anyrig.checkpoint.consolidate import consolidate
from anyrig.checkpoint.convert import convert
from anyrig.checkpoint.describe import describe
from anyrig.checkpoint.digest import hash_file
from anyrig.checkpoint.saved_tensors import read_tensors
from anyrig.checkpoint.snapshot_files import read_snapshot
from anyrig.checkpoint.tensor_in_parts import whole_tensor
from anyrig.errors import (
    CheckpointDamagedError,
    CheckpointError,
    KeyMismatchError,
    OtherRankError,
    RankMismatchError,
    RankWaitError,
)
from anyrig.processes.group.membership import current_context, join_group
from anyrig.processes.time_limit import TIME_LIMIT_VARIABLE, set_time_limit

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
        model = anyrig.spread(model, plan=anyrig.Shards())
    elif layout == "pipeline":
        current_context().counts["loaders without a model"] = 0
        model = anyrig.spread(model, plan=anyrig.Pipeline())
        current_context().counts["pipelines"] = 0  # each rank takes samples, as in other layouts
    elif layout == "replicas of shards":
        from torch.distributed.fsdp import fully_shard

        shape = (dist.get_world_size(), 1)  # each rank has all elements, and so a choice of writers
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))
        fully_shard(model, mesh=mesh)
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
    tensors: dict[str, Any] = {
        name: whole_tensor(tensor) for name, tensor in (snapshot.model or {}).items()
    }
    for name, parts in state.tensors.items():
        tensors |= {f"{name}.{part}": whole_tensor(each) for part, each in parts.items()}
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


def case_every_way_of_writing_has_the_same_content(folder: Path, sources: list[Path]) -> None:
    count = dist.get_world_size()
    shards = {f"shard.{index:05d}-of-{count:05d}" for index in range(1, count + 1)}
    paths: list[Path] = []
    for layout, sharded in (
        *(("ranks", sharded) for sharded in (None, True)),
        *(("shards", sharded) for sharded in (None, True, False)),
        *(("replicas of shards", sharded) for sharded in (None, False)),
        ("plain DDP", True),
    ):
        objects = make_objects(layout)
        train_steps(objects, 1)
        anyrig.load(sources[0], **objects)
        path = anyrig.save(folder / f"{layout} {sharded}", step=3, sharded=sharded, **objects)
        names = {each.name for each in path.glob("*.safetensors")}
        if "shards" in layout and sharded is not False:
            stems = ("model", "optimizer")
            assert names == {f"{stem}.{each}.safetensors" for stem in stems for each in shards}
        elif sharded:
            assert {"model-00001-of-0000" + f"{count}.safetensors"} < names
            assert len(names) == 2 * count
        else:
            assert names == {"model.safetensors", "optimizer.safetensors"}
        paths.append(path)
        for other in ("ranks", "shards"):  # each reads what it needs, from any of them
            loaded = make_objects(other)
            anyrig.load(path, **loaded)
            again = anyrig.save(folder / f"again {layout} {sharded} {other}", **loaded)
            assert_same_content(path, again)
    (first,) = sources[0].glob("000001*")
    for path in paths if dist.get_rank() == 0 else ():
        assert_same_content(first, path)
        assert verify_folder(path) == ()
        check_tools(first, path, folder / "joined")
    anyrig.barrier()
    read_by_torch(next(path for path in paths if path.parent.name == "shards None"), first)


def check_tools(whole: Path, path: Path, scratch: Path) -> None:
    """Show, convert, consolidate and compare a checkpoint as the commands do."""
    expected = read_any_model(whole, whole=True).tensors
    assert compare(expected, read_any_model(path, whole=True).tensors).is_equal
    shapes = {each.name: each.shape for each in describe(path).tensors}
    assert shapes == {each.name: each.shape for each in describe(whole).tensors}
    assert len(describe(path).tensors) == len(shapes)
    scratch.mkdir(exist_ok=True)
    targets = [scratch / "converted.safetensors"]
    convert(path, targets[0], overwrite=True)
    if len([*path.glob("model*.safetensors")]) > 1:
        targets.append(scratch / "joined.safetensors")
        consolidate(path, targets[1], overwrite=True)
    for target in targets:
        found = load_file(target)
        assert {name: expected[name].shape for name in found} == {
            name: tensor.shape for name, tensor in found.items()
        }
        assert compare({name: expected[name] for name in found}, found).is_equal


def read_by_torch(path: Path, whole: Path) -> None:
    """Let torch.distributed.checkpoint read the files of shards."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load
    from torch.distributed.fsdp import fully_shard

    model = make_model()
    for each in model.parameters():
        each.data.zero_()
    fully_shard(model)
    load(model.state_dict(), storage_reader=HuggingFaceStorageReader(str(path)))
    for name, tensor in load_file(whole / "model.safetensors").items():
        sharded: Any = model.state_dict()[name]
        assert torch.equal(sharded.full_tensor(), tensor)


def case_tied_weights_in_shards_are_written_once(folder: Path, sources: list[Path]) -> None:
    def make() -> nn.Sequential:
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6, bias=False))
        model[1].weight = model[0].weight
        return model

    torch.manual_seed(3)
    model: Any = anyrig.spread(make(), plan=anyrig.Shards())
    path = anyrig.save(folder / "a", model=model)
    sizes = sum(each.stat().st_size for each in path.glob("model.shard.*"))
    assert sizes < 6 * 7 * 4 + 400 * dist.get_world_size()
    other: Any = anyrig.spread(make(), plan=anyrig.Shards())
    alone = make()
    for each in (other, alone):
        with torch.no_grad():
            for parameter in each.parameters():
                parameter.zero_()
        anyrig.load(path, model=each)
    assert alone[1].weight is alone[0].weight
    for name, tensor in model.state_dict().items():
        whole = tensor.full_tensor()
        assert torch.equal(other.state_dict()[name].full_tensor(), whole)
        assert torch.equal(alone.state_dict()[name], whole)


def case_ranks_with_other_tensors_cannot_save_together(folder: Path, sources: list[Path]) -> None:
    model = nn.Linear(3, 3 + (dist.get_rank() == 1))
    with pytest.raises(
        RankMismatchError, match=r"with tensors '2 \(names, .*rank 1 with '2 \(name"
    ):
        anyrig.save(folder / "a", model=model, sharded=True)
    assert not (folder / "a").exists()


def case_what_differs_between_ranks_is_written_by_rank_0(folder: Path, sources: list[Path]) -> None:
    rank = dist.get_rank()
    layers = [nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)]
    for layout in ("DDP", "alone", "shards"):
        torch.manual_seed(5)
        net: Any = nn.Sequential(*(copy.deepcopy(each) for each in layers))
        if layout == "DDP":
            net = DistributedDataParallel(net)
        elif layout == "shards":
            net = anyrig.spread(net, plan=anyrig.Shards())
        own = nn.Linear(40, 3)  # nothing keeps it equal on the ranks
        with torch.no_grad():
            for each in own.parameters():
                each.fill_(rank)
            for name, each in net.named_buffers():
                each.fill_(rank + name.endswith("num_batches_tracked"))
            if layout == "alone":
                for each in net.parameters():
                    each.fill_(rank)
        path = anyrig.save(folder / layout, model=net, own=own, sharded=True)
        found = {name: whole_tensor(each) for name, each in read_model(path, "model").items()}
        assert all((each == 0).all() for each in read_model(path, "own").values())
        assert found.pop("1.num_batches_tracked") == 1
        for name in ("1.running_mean", "1.running_var"):
            assert (found.pop(name) == 0).all()
        for name, tensor in found.items():
            expected = dict(net.named_parameters()).get(name)
            if layout == "alone":
                assert (tensor == 0).all(), name
            elif layout == "shards":
                sharded: Any = expected
                assert torch.equal(tensor, sharded.full_tensor())
        if layout == "DDP":
            parameters = {f"module.{name}": each for name, each in found.items()}
            assert all(torch.equal(each, parameters[name]) for name, each in net.named_parameters())
            assert len([*path.glob("model-*")]) == dist.get_world_size()


def read_model(path: Path, stem: str) -> dict[str, Any]:
    return read_tensors(path, stem, [each.name for each in path.iterdir()])


def case_each_file_is_hashed_by_one_rank(folder: Path, sources: list[Path]) -> None:
    objects = make_objects("shards")
    train_steps(objects, 1)
    older = anyrig.save(folder / "a", step=1, **objects)
    path = anyrig.save(folder / "a", step=2, **objects)
    hashed: list[str] = []

    def note(file: Path) -> str:
        hashed.append(file.name)
        return hash_file(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anyrig.checkpoint.verify.hash_file", note)
        anyrig.load(folder / "a", **objects)
        of_ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, hashed)
        every = [name for names in of_ranks for name in names]
        assert sorted(every) == sorted(read_manifest(path).files)
        hashed.clear()
        anyrig.load(folder / "a", verify=False, **objects)
        assert hashed == []
    for file in sorted(read_manifest(path).files):
        content = (path / file).read_bytes()
        anyrig.barrier()
        if dist.get_rank() == 0:
            middle = len(content) // 2
            changed = bytes([content[middle] ^ 1])
            (path / file).write_bytes(content[:middle] + changed + content[middle + 1 :])
        anyrig.barrier()
        told = (
            pytest.warns(RuntimeWarning, match=rf"{re.escape(str(path / file))} was altered")
            if dist.get_rank() == 0
            else nullcontext()
        )
        with told:
            assert anyrig.load(folder / "a", **objects).path == older
        with pytest.raises((CheckpointDamagedError, OtherRankError), match=re.escape(file)):
            anyrig.load(path, **objects)
        anyrig.barrier()
        if dist.get_rank() == 0:
            (path / file).write_bytes(content)
        anyrig.barrier()
    assert anyrig.load(folder / "a", **objects).step == 2


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


def case_the_manifest_says_how_the_model_was_spread(folder: Path, sources: list[Path]) -> None:
    count = dist.get_world_size()
    for layout, words in (
        ("ranks", f"replicas over {count} ranks"),
        ("shards", f"shards over {count} ranks"),
        ("plain DDP", f"DistributedDataParallel, {count} ranks"),
    ):
        path = anyrig.save(folder / layout, model=make_objects(layout)["model"])
        manifest = read_manifest(path)
        assert (manifest.layout, manifest.ranks) == (words, count)


def case_parameters_that_ddp_ignores_are_written_by_rank_0(
    folder: Path, sources: list[Path]
) -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    ignored = ["0.weight", "0.bias"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ignored)
    wrapped = DistributedDataParallel(net)
    with torch.no_grad():
        for name in ignored:
            net.get_parameter(name).fill_(dist.get_rank() + 1)
    path = anyrig.save(folder / "a", model=wrapped, sharded=True)
    found = {name: whole_tensor(each) for name, each in read_model(path, "model").items()}
    assert all((found[name] == 1).all() for name in ignored)
    assert torch.equal(found["1.weight"], net[1].weight)


def case_shards_that_cannot_be_written_are_refused(folder: Path, sources: list[Path]) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FSDP1 is deprecated
        old = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
    with pytest.raises(
        CheckpointError, match=r"wrapped in FullyShardedDataParallel \(FSDP1\), whos"
    ):
        anyrig.save(folder / "a", model=old)
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "tp"))
    net = nn.Sequential(nn.Linear(6, 6))
    parallelize_module(net, mesh["tp"], {"0": ColwiseParallel()})
    fully_shard(net, mesh=mesh["dp"])
    with pytest.raises(
        CheckpointError, match=r"has several regions of model: 0.weight, as with FSDP"
    ):
        anyrig.save(folder / "a", model=net, sharded=True)
    assert not (folder / "a").exists()
    path = anyrig.save(folder / "a", model=net)  # rank 0 gathers
    assert (path / "model.safetensors").exists()


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
