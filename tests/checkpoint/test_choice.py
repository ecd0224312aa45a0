"""Ranks that verify a checkpoint together, in one folder or in copies of their own."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks_in_threads import ThreadRanks, run_on_ranks

import anyrig
from anyrig.checkpoint.choice import choose, divide_files
from anyrig.checkpoint.manifest import FileFact, read_manifest
from anyrig.errors import CheckpointError, OtherRankError, RankMismatchError

COUNT = 2


class OnNodes(ThreadRanks):
    """Each rank finds the checkpoints below a folder of its own, as on nodes with local disks."""

    def _exchange(self, value: Any) -> list[Any]:
        values = super()._exchange(value)
        for each in values:
            each["text"] = each["text"].replace("/node-0/", f"/node-{self.rank}/")
            each["facts"] = {}
        return values


def save_on_nodes(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"node-{rank}" / "a" for rank in range(COUNT)]
    anyrig.save(paths[0], model=torch.nn.Linear(3, 3), step=1)
    shutil.copytree(paths[0], paths[1])
    return paths


def test_each_node_verifies_a_copy_of_its_own(tmp_path: Path) -> None:
    paths = save_on_nodes(tmp_path)

    def work(ranks: ThreadRanks) -> None:
        chosen = choose(ranks, paths[ranks.rank], "latest", verify=True)
        assert chosen == paths[ranks.rank] / "000001-step-1"

    assert run_on_ranks(COUNT, work, OnNodes)[1] == [None, None]
    for rank, path in enumerate(paths):
        for file in sorted(read_manifest(path / "000001-step-1").files):
            damaged = path / "000001-step-1" / file
            content = damaged.read_bytes()
            damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            errors = run_on_ranks(COUNT, work, OnNodes)[1]
            assert all(f"node-{rank}/a/000001-step-1/{file} was alt" in str(e) for e in errors)
            damaged.write_bytes(content)


def test_a_node_without_the_checkpoint_is_named(tmp_path: Path) -> None:
    paths = save_on_nodes(tmp_path)
    shutil.rmtree(paths[1])
    _, errors = run_on_ranks(
        COUNT, lambda ranks: choose(ranks, paths[ranks.rank], "latest", verify=True), OnNodes
    )
    assert isinstance(errors[1], CheckpointError)
    assert isinstance(errors[0], OtherRankError)
    assert "rank 1 failed in a save" in str(errors[0])
    assert all("Load from a folder that all nodes share" in str(each) for each in errors)


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_files_are_divided_by_bytes(count: int) -> None:
    files = {f"f{number}": FileFact(100 * number, "0" * 64) for number in range(1, 8)}
    parts = divide_files(files, count)
    assert sorted(name for part in parts for name in part) == sorted(files)
    assert all(part == sorted(part) for part in parts)
    sizes = [sum(files[name].bytes for name in part) for part in parts]
    assert max(sizes) - min(sizes) <= 700


def test_the_names_of_a_rank_keep_their_order_and_large_files_are_apart() -> None:
    sizes = {"c": 5, "a": 9, "b": 4, "e": 1, "d": 1}
    files = {name: FileFact(size, "0" * 64) for name, size in sizes.items()}
    assert divide_files(files, 2) == [["a", "d"], ["c", "b", "e"]]
    assert divide_files(files, 1) == [[*sizes]]


def test_ranks_must_choose_alike(tmp_path: Path) -> None:
    anyrig.save(tmp_path / "a", metric=1.0, best="max")

    def work(ranks: ThreadRanks) -> None:
        choose(ranks, tmp_path / "a", "best" if ranks.rank else "latest", verify=True)

    _, errors = run_on_ranks(COUNT, work)
    for error in errors:
        assert isinstance(error, RankMismatchError)
        assert "with which 'latest', rank 1 with 'best'; pass the same" in str(error)


@pytest.mark.parametrize("count", [1, 3])
def test_rank_0_warns_of_each_damaged_checkpoint_once(count: int, tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 3)
    first, *damaged = (anyrig.save(tmp_path / "a", model=model, step=step) for step in (1, 2, 3))
    for path in damaged:
        content = (path / "model.safetensors").read_bytes()
        (path / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    def work(ranks: ThreadRanks) -> None:
        assert choose(ranks, tmp_path / "a", "latest", verify=True) == first

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert run_on_ranks(count, work)[1] == [None] * count
    messages = [str(each.message) for each in told]
    assert [message.split("/model.safetensors was altered")[0] for message in messages] == [
        str(path) for path in reversed(damaged)
    ]
    assert all(message.endswith(f"loading {first} instead") for message in messages)
