"""Ranks that verify a checkpoint together, in one folder or in copies of their own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks_in_threads import ThreadRanks, run_on_ranks

import anyrig
from anyrig.checkpoint.choice import choose, divide_files
from anyrig.checkpoint.manifest import FileFact, read_manifest
from anyrig.errors import CheckpointError, OtherRankError

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
