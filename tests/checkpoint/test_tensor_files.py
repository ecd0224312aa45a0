"""Files of shards: parts are joined, read where they are needed, and refused if they do not fit."""

from __future__ import annotations

import json
import random
import re
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from anyrig.checkpoint.commit import commit
from anyrig.checkpoint.consolidate import consolidate
from anyrig.checkpoint.digest import hash_file
from anyrig.checkpoint.division import Division
from anyrig.checkpoint.manifest import FileFact, Manifest
from anyrig.checkpoint.region import Region, find_bad_region
from anyrig.checkpoint.saved_tensors import read_tensors
from anyrig.checkpoint.series import Series
from anyrig.checkpoint.tensor_file_names import role_of
from anyrig.checkpoint.tensor_files import Writing, contents_of
from anyrig.checkpoint.tensor_in_parts import TensorInParts, whole_tensor
from anyrig.checkpoint.values_file import encode_values
from anyrig.errors import CheckpointDamagedError


def names_of(count: int) -> list[str]:
    return [f"model.shard.{rank:05d}-of-{count:05d}.safetensors" for rank in range(1, count + 1)]


def write_parts(
    folder: Path, files: list[dict[str, tuple[Tensor, list[int]]]], **more: str
) -> list[str]:
    """Write files of parts, each with its start."""
    folder.mkdir(exist_ok=True)
    for name, parts in zip(names_of(len(files)), files, strict=True):
        starts = {each: {"saved_offsets": start} for each, (_, start) in parts.items()}
        metadata = {"format": "pt", "DCP_SHARDING_INFO": json.dumps(starts)} | more
        tensors = {each: tensor.contiguous() for each, (tensor, _) in parts.items()}
        save_file(tensors, folder / name, metadata)
    return names_of(len(files))


def quarters(tensor: Tensor) -> list[dict[str, tuple[Tensor, list[int]]]]:
    return [
        {"a": (tensor[rows, columns], [rows.start, columns.start])}
        for rows in (slice(0, 3), slice(3, 5))
        for columns in (slice(0, 1), slice(1, 4))
    ]


def test_any_region_is_read_from_the_parts(tmp_path: Path) -> None:
    tensor = torch.arange(20).reshape(5, 4)
    files = write_parts(tmp_path, quarters(tensor))
    (found,) = read_tensors(tmp_path, "model", files).values()
    assert isinstance(found, TensorInParts)
    assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
    assert torch.equal(found.whole(), tensor)
    for top in range(5):
        for left in range(4):
            expected = tensor[top:, left:]
            target = torch.full_like(expected, -1)
            assert torch.equal(found.read_into(target, (top, left)), expected)
            cell = torch.empty((1, 1))  # of another element type
            assert found.read_into(cell, (top, left)) == tensor[top, left]


def test_parts_that_are_not_needed_are_not_read() -> None:
    here, elsewhere = Region((0,), (3,)), Region((3,), (2,))
    unread = torch.empty(2, device="meta")  # which has no elements to copy
    saved = TensorInParts(
        torch.Size([5]), torch.float32, [(here, torch.ones(3)), (elsewhere, unread)]
    )
    assert saved.read_into(torch.zeros(2), (1,)).tolist() == [1, 1]
    with pytest.raises(NotImplementedError):
        saved.read_into(torch.zeros(2), (2,))


def test_whole_tensors_and_other_names_are_found_in_files_of_shards(tmp_path: Path) -> None:
    scalar, row = torch.tensor(3.0), torch.arange(4)
    first = {"n": (scalar, []), "a": (row[:3], [0]), "empty": (torch.empty(0, 2), [0, 0])}
    files = write_parts(tmp_path, [first, {"a": (row[3:], [3])}], tied="a")
    found = {
        name: whole_tensor(each) for name, each in read_tensors(tmp_path, "model", files).items()
    }
    assert found.keys() == {"n", "a", "empty", "tied"}
    assert found["n"] == scalar
    assert found["empty"].shape == (0, 2)
    assert torch.equal(found["tied"], row)


def half(start: list[Any], size: int = 2) -> dict[str, tuple[Tensor, list[Any]]]:
    return {"a": (torch.zeros(size, 2), start)}


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ([half([0, 0]), half([3, 0])], r"is not covered by its 2 parts"),
        ([half([0, 0]), half([1, 0]), half([0, 0], 1)], r"is not covered|overlap"),
        ([half([0, 0], 3), half([2, 0], 1), half([2, 0], 1)], r"is not covered|overlap"),
        ([half([0, 0]), {"a": (torch.zeros(2), [2])}], r"has a part of"),
        ([half([0, 0]), {"a": (torch.zeros(2, 2).int(), [2, 0])}], r"2 element types"),
        ([half([0, 0]), half([-2, 0])], r"does not say where its parts belong"),
        ([half([0, 0]), half(["2", 0])], r"does not say where its parts belong"),
    ],
)
def test_parts_that_do_not_fit_are_refused(files: list[Any], problem: str, tmp_path: Path) -> None:
    names = write_parts(tmp_path, files)
    with pytest.raises(CheckpointDamagedError, match=problem):
        read_tensors(tmp_path, "model", names)


def test_missing_files_of_shards_are_named(tmp_path: Path) -> None:
    names = write_parts(tmp_path, quarters(torch.zeros(5, 4)))
    with pytest.raises(CheckpointDamagedError, match=re.escape(names[2])):
        read_tensors(tmp_path, "model", [names[0], names[1], names[3]])
    (tmp_path / names[1]).unlink()
    with pytest.raises(CheckpointDamagedError, match=re.escape(names[1])):
        read_tensors(tmp_path, "model", names)
    save_file({"a": torch.zeros(1)}, tmp_path / names[1])
    with pytest.raises(CheckpointDamagedError, match=r"00002-of-00004.* does not say where its pa"):
        read_tensors(tmp_path, "model", names)


def test_regions_cover_a_tensor_or_not() -> None:
    draw = random.Random(0)
    for _ in range(200):
        shape = (draw.randint(1, 5), draw.randint(1, 5))
        cut = draw.randint(0, shape[0])
        regions = [Region((0, 0), (cut, shape[1])), Region((cut, 0), (shape[0] - cut, shape[1]))]
        assert find_bad_region(shape, regions) is None
        first, second = regions
        assert first.overlap(second) is None
        if first.elements:
            assert find_bad_region(shape, [*regions, first]) is not None
            assert find_bad_region(shape, [second]) is not None
            moved = Region((1, 0), first.sizes)
            assert find_bad_region(shape, [moved, second]) is not None


def test_a_division_is_even_and_each_tensor_has_one_writer(tmp_path: Path) -> None:
    draw = random.Random(0)
    tensors = {f"t{number}": torch.empty(draw.randint(1, 1000)) for number in range(60)}
    tensors["large"], tensors["buffer"] = torch.empty(4000), torch.empty(100)
    replicated = {name for name in tensors if name != "buffer"}
    written: dict[str, int] = {}
    loads = []
    for rank in range(4):
        writing = Writing(rank, lambda tensor: tensor, Division(rank, 4), {"model": replicated})
        contents = contents_of("model", tensors, writing)
        size = 0
        for file, parts in contents.items():
            (tmp_path / file).write_bytes(b"".join(bytes(memoryview(each)) for each in parts))
            if file.endswith(".safetensors"):
                own = load_file(tmp_path / file)
                written |= dict.fromkeys(own, rank)
                size += sum(each.nbytes for each in own.values())
        loads.append(size)
    assert written.keys() == tensors.keys()
    assert sum(loads) == sum(each.nbytes for each in tensors.values())
    assert written["buffer"] == 0
    assert max(loads) - min(loads) < 500
    names = [each.name for each in tmp_path.iterdir()]
    assert read_tensors(tmp_path, "model", names).keys() == tensors.keys()


def test_roles_of_files() -> None:
    roles = {
        "model.safetensors": "model",
        "model-00001-of-00002.safetensors": "model",
        "model.shard.00001-of-00002.safetensors": "model",
        "optimizer.first.safetensors": "optimizer.first",
        "optimizer.shard.safetensors": "optimizer.shard",
        "optimizer.shard.shard.00001-of-00002.safetensors": "optimizer.shard",
        "values.pt": None,
        "model.safetensors.index.json": None,
    }
    assert {file: role_of(file) for file in roles} == roles


def test_consolidating_shards_holds_one_tensor_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {f"t{number}": torch.randn(6, 5) for number in range(8)}
    parts = [
        {name: (each[rows], [rows.start, 0]) for name, each in tensors.items()}
        for rows in (slice(0, 2), slice(2, 6))
    ]
    files = write_parts(tmp_path / "parts", parts)
    contents = {file: [(tmp_path / "parts" / file).read_bytes()] for file in files}
    names = ("modules", "optimizers", "states", "given")
    contents["values.pt"] = [encode_values({**{name: {} for name in names}, "random": []})]

    def describe(number: int, facts: dict[str, FileFact]) -> Manifest:
        return Manifest(number, None, None, None, "", 2, time.time(), {}, facts)

    path = commit(Series(tmp_path / "a"), contents, describe).path
    assert hash_file(path / files[0]) != hash_file(path / files[1])
    alive: list[int] = []
    made: list[weakref.ref[Tensor]] = []
    whole = TensorInParts.whole

    def note(self: TensorInParts) -> Tensor:
        alive.append(sum(each() is not None for each in made))
        tensor = whole(self)
        made.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(TensorInParts, "whole", note)
    done = consolidate(path, tmp_path / "joined.safetensors")
    assert (done.tensors, len(alive)) == (8, 8)
    assert max(alive) <= 1
    torch.testing.assert_close(load_file(tmp_path / "joined.safetensors"), tensors, rtol=0, atol=0)


def test_a_file_is_filled_up_to_its_largest_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Hugging Face writes them: the total size counts a tied tensor once."""
    monkeypatch.setattr("anyrig.checkpoint.tensor_files.LARGEST_FILE_BYTES", 32)
    tensors = {f"t{number}": torch.full((4,), float(number)) for number in range(3)}
    tensors |= {"large": torch.ones(9), "last": torch.ones(1), "tied": tensors["t0"]}
    contents = contents_of("model", tensors, Writing(0, lambda tensor: tensor))
    for file, parts in contents.items():
        (tmp_path / file).write_bytes(b"".join(bytes(memoryview(each)) for each in parts))
    held = [sorted(load_file(tmp_path / file)) for file in contents if "index" not in file]
    assert held == [["t0", "t1"], ["t2"], ["large"], ["last"]]
    names = [f"model-0000{number}-of-00004.safetensors" for number in (1, 2, 3, 4)]
    assert [*contents] == [*names, "model.safetensors.index.json"]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index == {
        "metadata": {"total_size": 3 * 16 + 36 + 4},
        "weight_map": {
            "t0": names[0],
            "t1": names[0],
            "t2": names[1],
            "large": names[2],
            "last": names[3],
            "tied": names[0],
        },
    }


@pytest.mark.parametrize("name", ["w", "weight", "a name of twenty chars", "é"])
def test_data_begins_at_a_multiple_of_8_bytes_and_wide_elements_are_first(name: str) -> None:
    tensors = {f"{name}1": torch.ones(3, dtype=torch.int8), f"{name}2": torch.ones(1).double()}
    tensors |= {f"{name}4": torch.ones(1), f"{name}3": torch.ones(1)}
    (parts,) = contents_of("model", tensors, Writing(0, lambda tensor: tensor)).values()
    content = b"".join(bytes(memoryview(each)) for each in parts)
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    offsets = {
        key[-1]: each["data_offsets"]
        for key, each in json.loads(content[8 : 8 + length]).items()
        if key != "__metadata__"
    }
    assert offsets == {"2": [0, 8], "3": [8, 12], "4": [12, 16], "1": [16, 19]}
