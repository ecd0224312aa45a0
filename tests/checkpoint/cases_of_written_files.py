"""What ranks do in `test_layouts.py`: the files that they write, and which rank writes which."""

from __future__ import annotations

import copy
import re
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from layout_objects import assert_same_content, make_model, make_objects, train_steps
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import anyrig
from anyrig.checkpoint import read_manifest, verify_folder
from anyrig.checkpoint.any_model import read_any_model
from anyrig.checkpoint.compare import compare
from anyrig.checkpoint.consolidate import consolidate
from anyrig.checkpoint.convert import convert
from anyrig.checkpoint.describe import describe
from anyrig.checkpoint.digest import hash_file
from anyrig.checkpoint.saved_tensors import read_tensors
from anyrig.checkpoint.tensor_in_parts import whole_tensor
from anyrig.errors import (
    CheckpointDamagedError,
    CheckpointError,
    OtherRankError,
)


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
