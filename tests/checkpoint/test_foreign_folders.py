"""Folders and archives of other tools: stale files, numbered shards, programs, and remedies."""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from anyrig.checkpoint import read_foreign
from anyrig.checkpoint.consolidate import consolidate
from anyrig.checkpoint.convert import convert
from anyrig.checkpoint.foreign.inside import find_inside
from anyrig.errors import CheckpointDamagedError, CheckpointError, UnsafeFileError

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled:UserWarning",
    "ignore:TypedStorage is deprecated:UserWarning",
    "ignore:`torch.jit:DeprecationWarning",
    "ignore:`torch.jit:FutureWarning",  # since 2.14
)
OLD, NEW = torch.zeros(2), torch.ones(2)
SAFETENSORS, BIN = (
    ("model", "safetensors", lambda tensors, path: save_file(tensors, path)),
    ("pytorch_model", "bin", torch.save),
)


def write_shards(
    folder: Path, kind: Any, values: Tensor, count: int = 2, index: bool = True
) -> list[str]:
    """Write a model of `count` tensors in numbered files; return their names."""
    stem, suffix, write = kind
    folder.mkdir(exist_ok=True)
    names = [f"{stem}-{number:05d}-of-{count:05d}.{suffix}" for number in range(1, count + 1)]
    for number, name in enumerate(names):
        write({f"t{number}": values.clone()}, folder / name)
    if index:
        found = {f"t{number}": name for number, name in enumerate(names)}
        text = json.dumps({"metadata": {}, "weight_map": found})
        (folder / f"{stem}.{suffix}.index.json").write_text(text)
    return names


@pytest.mark.parametrize("kind", [SAFETENSORS, BIN], ids=["safetensors", "bin"])
class TestStaleFiles:
    def test_the_single_file_is_read_and_the_others_are_named(
        self, kind: Any, tmp_path: Path
    ) -> None:
        names = write_shards(tmp_path, kind, OLD)
        stem, suffix, write = kind
        write({"t0": NEW.clone(), "t1": NEW.clone()}, tmp_path / f"{stem}.{suffix}")
        found = read_foreign(tmp_path)
        assert all(torch.equal(each, NEW) for each in found.tensors.values())
        assert {*found.unread} == {*names, f"{stem}.{suffix}.index.json"}
        convert(tmp_path, tmp_path / "out.pt")
        assert torch.equal(torch.load(tmp_path / "out.pt")["t0"], NEW)
        with pytest.raises(CheckpointError, match="holds a model in one file already"):
            consolidate(tmp_path, tmp_path / "whole.safetensors")

    def test_the_index_may_have_lost_its_files(self, kind: Any, tmp_path: Path) -> None:
        for name in write_shards(tmp_path, kind, OLD):
            (tmp_path / name).unlink()
        stem, suffix, write = kind
        write({"t0": NEW.clone()}, tmp_path / f"{stem}.{suffix}")
        assert torch.equal(read_foreign(tmp_path).tensors["t0"], NEW)

    def test_files_that_the_index_does_not_name_are_named(self, kind: Any, tmp_path: Path) -> None:
        older = write_shards(tmp_path, kind, OLD, count=3)
        write_shards(tmp_path, kind, NEW)
        found = read_foreign(tmp_path)
        assert all(torch.equal(each, NEW) for each in found.tensors.values())
        assert [*found.unread] == older
        assert found.unread[older[0]].startswith("not a part of the model that was read")


def test_files_of_another_format_and_folders_are_named(tmp_path: Path) -> None:
    write_shards(tmp_path, SAFETENSORS, NEW)
    names = write_shards(tmp_path, BIN, OLD)
    for name in ("config.json", "training_args.bin", "adapter_model.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
    (tmp_path / "checkpoint-5").mkdir()
    found = read_foreign(tmp_path)
    expected = {*names, "pytorch_model.bin.index.json", "config.json", "training_args.bin"}
    assert {*found.unread} == {*expected, "adapter_model.safetensors", "checkpoint-5"}


def test_the_unread_files_of_accelerate_and_distributed_folders_are_named(tmp_path: Path) -> None:
    save_file({"a": NEW}, tmp_path / "model.safetensors")
    save_file({"a": OLD}, tmp_path / "ema.safetensors")
    torch.save({"state": {}, "param_groups": []}, tmp_path / "optimizer.bin")
    (tmp_path / "random_states_0.pkl").write_bytes(pickle.dumps({}))
    found = read_foreign(tmp_path)
    assert {*found.extra} == {"optimizer"}
    assert {*found.unread} == {"ema.safetensors", "random_states_0.pkl"}
    dcp.save({"model": {"a": NEW}}, checkpoint_id=tmp_path / "dcp")
    torch.save({"b": OLD}, tmp_path / "dcp" / "extra.pt")
    assert {*read_foreign(tmp_path / "dcp").unread} == {"extra.pt"}


@pytest.mark.parametrize("kind", [SAFETENSORS, BIN], ids=["safetensors", "bin"])
class TestNumberedFilesWithoutAnIndex:
    def test_are_read_together(self, kind: Any, tmp_path: Path) -> None:
        write_shards(tmp_path / "a", kind, NEW, count=3, index=False)
        found = read_foreign(tmp_path / "a")
        assert found.tensors.keys() == {"t0", "t1", "t2"}
        assert found.unread == {}
        assert f"3 numbered .{kind[1]} files" in str(found.recognition)
        done = consolidate(tmp_path / "a", tmp_path / "whole.safetensors")
        assert done.tensors == 3
        assert torch.equal(load_file(tmp_path / "whole.safetensors")["t2"], NEW)

    def test_one_that_is_missing_is_named(self, kind: Any, tmp_path: Path) -> None:
        names = write_shards(tmp_path, kind, NEW, count=4, index=False)
        (tmp_path / names[2]).unlink()
        with pytest.raises(CheckpointDamagedError, match=r"has 3 of 4 numbered files.*number 3 is"):
            read_foreign(tmp_path)

    def test_of_two_models_are_refused(self, kind: Any, tmp_path: Path) -> None:
        write_shards(tmp_path, kind, NEW, count=2, index=False)
        write_shards(tmp_path, kind, NEW, count=3, index=False)
        with pytest.raises(CheckpointError, match="has 5 files that could be the model"):
            read_foreign(tmp_path)

    def test_with_one_tensor_twice_are_refused(self, kind: Any, tmp_path: Path) -> None:
        first, second = write_shards(tmp_path, kind, NEW, index=False)
        (tmp_path / second).write_bytes((tmp_path / first).read_bytes())
        with pytest.raises(CheckpointDamagedError, match="both hold 't0', so they are not shards"):
            read_foreign(tmp_path)


def write_export(path: Path) -> None:
    exported = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    torch.export.save(exported, path)


def write_package(path: Path) -> None:
    with torch.package.PackageExporter(str(path)) as package:
        package.extern("**")
        package.save_pickle("model", "model.pkl", nn.Linear(2, 2))


def write_arrays(path: Path) -> None:
    np.savez_compressed(path.with_suffix(".npz"), a=np.ones(2))
    path.with_suffix(".npz").rename(path)


def write_compressed(path: Path) -> None:
    torch.save({"a": NEW}, path)
    with zipfile.ZipFile(path) as archive:
        records = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in records.items():
            archive.writestr(name, content)


ARCHIVES: dict[str, tuple[Callable[[Path], object], str]] = {
    "script": (lambda path: torch.jit.save(torch.jit.script(nn.Linear(2, 2)), path), "TorchScript"),
    "trace": (
        lambda path: torch.jit.save(torch.jit.trace(nn.ReLU(), torch.ones(1)), path),
        "TorchScript",
    ),
    "export": (write_export, r"torch\.export"),
    "package": (write_package, r"torch\.package"),
    "npz": (write_arrays, "NumPy arrays"),
    "compressed": (write_compressed, "is compressed, and torch.save compresses nothing"),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_an_archive_of_another_kind_is_called_what_it_is(kind: str, tmp_path: Path) -> None:
    write, message = ARCHIVES[kind]
    write(tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=message) as caught:
        read_foreign(tmp_path / "a.pt")
    assert ("is damaged" in str(caught.value)) == (kind == "compressed")


REFUSED: dict[str, Any] = {
    "nnU-Net": {"network_weights": {"a": NEW}, "_best_ema": np.float64(0.5)},
    "arguments": {"model": {"a": NEW}, "args": Namespace(lr=0.1), "epoch": 3},
    "module": nn.Linear(2, 2),
    "module in a dict": {"model": nn.Linear(2, 2), "config": Namespace()},
    "nested": {"state_dict": {"a": NEW}, "optimizer": {"state": {0: {"b": OLD}}}, "x": Namespace()},
    "flat": {"a": NEW, "numbers": np.ones(2, dtype=object)},
}


def follow_remedy(error: Exception, source: Path, target: Path) -> None:
    """Run the program that an error prints."""
    lines = [line.strip() for line in str(error).splitlines() if line.startswith("  ")]
    program = re.sub(r"\b(FILE|FOLDER)\b", repr(str(source)), "\n".join(lines))
    exec(program.replace("'weights.pt'", repr(str(target))), {"torch": torch})


@pytest.mark.parametrize("kind", REFUSED)
def test_the_printed_remedy_makes_a_file_that_is_read(kind: str, tmp_path: Path) -> None:
    torch.save(REFUSED[kind], tmp_path / "a.pt")
    with pytest.raises(UnsafeFileError) as caught:
        read_foreign(tmp_path / "a.pt")
    follow_remedy(caught.value, tmp_path / "a.pt", tmp_path / "w.pt")
    tensors = read_foreign(tmp_path / "w.pt").tensors
    assert tensors.keys() == ({"weight", "bias"} if "module" in kind else {"a"})


def test_the_remedy_for_a_folder_makes_a_file_that_is_read(tmp_path: Path) -> None:
    dcp.save({"model": {"a": NEW}, "args": Namespace(lr=0.1)}, checkpoint_id=tmp_path / "a")
    with pytest.raises(UnsafeFileError, match=r"argparse\.Namespace") as caught:
        read_foreign(tmp_path / "a")
    follow_remedy(caught.value, tmp_path / "a", tmp_path / "w.pt")
    assert torch.equal(read_foreign(tmp_path / "w.pt").tensors["a"], NEW)


class Local:
    """Pickles as a class of PyTorch's shards would, without ranks."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __reduce__(self) -> Any:
        import importlib

        return getattr(importlib.import_module(self.module), self.name), ()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.distributed.tensor", "DTensor"),
        ("torch.distributed._shard.sharded_tensor.api", "ShardedTensor"),
        ("torch.distributed.tensor.placement_types", "Shard"),
        ("torch.distributed._shard.sharded_tensor.shard", "Shard"),
    ],
)
def test_one_rank_s_pickle_of_shards_is_called_what_it_is(
    module: str, name: str, tmp_path: Path
) -> None:
    torch.save({"weight": NEW, "part": Local(module, name)}, tmp_path / "rank0.pt")
    with pytest.raises(CheckpointError, match=rf"one rank's shards \({module}\.\w+\)") as caught:
        read_foreign(tmp_path / "rank0.pt")
    assert "anyrig.save(folder, model=model)" in str(caught.value)


def test_a_link_to_the_blobs_of_another_folder_is_refused(tmp_path: Path) -> None:
    blobs, home = tmp_path / "elsewhere" / "blobs", tmp_path / "cache" / "snapshots" / "rev"
    blobs.mkdir(parents=True)
    home.mkdir(parents=True)
    (blobs / "x").write_text("1")
    (home / "model").symlink_to(blobs / "x")
    with pytest.raises(UnsafeFileError):
        find_inside(home, "model", named_by="the index")
