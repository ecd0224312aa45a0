"""Metadata of distributed checkpoints that names other files, sizes or classes is refused."""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_files import write_distributed
from hostile_pickles import change_metadata, text

from anyrig.checkpoint.foreign.read import read_foreign
from anyrig.errors import CheckpointDamagedError, UnsafeFileError


def one_tensor(metadata: Any) -> Any:
    return metadata.state_dict_metadata["model.0.weight"]


def stored(metadata: Any, name: str = "model.0.weight") -> Any:
    return next(each for key, each in metadata.storage_data.items() if key.fqn == name)


def drop_stored(metadata: Any) -> None:
    key = next(key for key in metadata.storage_data if key.fqn == "model.0.weight")
    del metadata.storage_data[key]


def overlap(metadata: Any) -> None:
    """Cut a tensor of 4x3 into two overlapping chunks whose sizes add up to its size."""
    first, second = (
        type(one_tensor(metadata).chunks[0])(torch.Size([start, 0]), torch.Size([2, 3]))
        for start in (0, 1)
    )
    one_tensor(metadata).chunks = [first, second]


def nest_below_value(metadata: Any) -> None:
    metadata.planner_data["model.0.bias"] = ("epoch", "b")
    metadata.planner_data["epoch"] = ("epoch", "b", "c")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda m: setattr(stored(m), "relative_path", "../a.distcp"),
            UnsafeFileError,
            "only plain names",
        ),
        (
            lambda m: setattr(stored(m), "relative_path", "b.distcp"),
            CheckpointDamagedError,
            "has no such file",
        ),
        (lambda m: setattr(stored(m), "offset", 10**12), CheckpointDamagedError, "is truncated"),
        (lambda m: setattr(stored(m), "length", 10), CheckpointDamagedError, "but 10 are stored"),
        (lambda m: setattr(stored(m), "offset", -1), CheckpointDamagedError, "in place of counts"),
        (lambda m: setattr(stored(m), "offset", 1), CheckpointDamagedError, "is damaged"),
        (
            lambda m: setattr(stored(m), "transform_descriptors", ["zstd"]),
            CheckpointDamagedError,
            "compressed by an extension",
        ),
        (
            lambda m: setattr(one_tensor(m), "size", torch.Size([2**40, 3])),
            CheckpointDamagedError,
            "is not covered by its 1 parts",
        ),
        (
            lambda m: setattr(one_tensor(m).properties, "dtype", torch.float64),
            CheckpointDamagedError,
            "not torch.float64",
        ),
        (
            lambda m: one_tensor(m).chunks.append(one_tensor(m).chunks[0]),
            CheckpointDamagedError,
            "is not covered by its 2 parts",
        ),
        (
            lambda m: setattr(one_tensor(m).chunks[0], "offsets", torch.Size([3, 0])),
            CheckpointDamagedError,
            r"has a part of \(4, 3\) at \(3, 0\)",
        ),
        (overlap, CheckpointDamagedError, r"parts at \(0, 0\) and \(1, 0\) that overlap"),
        (drop_stored, CheckpointDamagedError, "does not say where 'model.0.weight' at"),
        (nest_below_value, CheckpointDamagedError, "below a value that is not nested"),
        *(
            (
                lambda m, path=path: m.planner_data.update({"epoch": path}),
                CheckpointDamagedError,
                "is damaged: the path of a value is ",
            )
            for path in ((), ["epoch"], ("a", True), ("a", 1.5), ("a",) * 101)
        ),
        (
            lambda m: setattr(m, "state_dict_metadata", []),
            CheckpointDamagedError,
            "a list in place of a dict",
        ),
        (
            lambda m: m.state_dict_metadata.update({"a": "b"}),
            CheckpointDamagedError,
            "a str in place of TensorFacts",
        ),
        (
            lambda m: setattr(m, "planner_data", {"epoch": argparse.Namespace()}),
            UnsafeFileError,
            r"imports argparse\.Namespace",
        ),
    ],
)
def test_false_metadata_is_refused(change: Any, error: Any, message: str, tmp_path: Path) -> None:
    folder = change_metadata(write_distributed(tmp_path / "a"), change)
    with pytest.raises(error, match=message):
        read_foreign(folder)


@pytest.mark.parametrize(
    ("instructions", "name"),
    [(b"(itorch\nSize\n.", "INST"), (b"(ctorch\nSize\no.", "OBJ"), (b"\x82\x01.", "EXT1")],
)
def test_metadata_with_unusual_instructions_is_refused(
    instructions: bytes, name: str, tmp_path: Path
) -> None:
    folder = write_distributed(tmp_path / "a")
    (folder / ".metadata").write_bytes(b"\x80\x02" + instructions)
    with pytest.raises(UnsafeFileError, match=f"uses the instructions {name}, which"):
        read_foreign(folder)


def test_a_name_that_the_scan_of_metadata_cannot_see_is_refused(tmp_path: Path) -> None:
    folder = write_distributed(tmp_path / "a")
    sentinel = tmp_path / "it_ran"
    hidden = text("os") + text("system") + text("torch") + text("Size") + b"00\x93"
    content = b"\x80\x04" + hidden + text(f"touch {sentinel}") + b"\x85R."
    (folder / ".metadata").write_bytes(content)
    with pytest.raises(
        UnsafeFileError, match=r"a/\.metadata is not read: its pickle imports os\.sys"
    ):
        read_foreign(folder)
    assert not sentinel.exists()
    pickle.loads(content)
    assert sentinel.exists()


def test_a_pickle_that_stores_at_a_huge_index_takes_no_memory(tmp_path: Path) -> None:
    """Python's own reader would allocate a table with a place for each index."""
    folder = write_distributed(tmp_path / "a")
    (folder / ".metadata").write_bytes(b"\x80\x02Nr\xff\xff\xff\x7f.")
    with pytest.raises(CheckpointDamagedError, match="stores a value at index 2147483647"):
        read_foreign(folder)


def test_metadata_cannot_change_what_stands_for_its_classes(tmp_path: Path) -> None:
    folder = write_distributed(tmp_path / "a")
    name = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"
    state = b"}" + text("__setstate__") + b"Ns"
    for instructions in (name + state + b"b.", name + b"N" + state + b"\x86b.", name + b"."):
        (folder / ".metadata").write_bytes(b"\x80\x02" + instructions)
        with pytest.raises(CheckpointDamagedError, match="is damaged"):
            read_foreign(folder)
    assert read_foreign(write_distributed(tmp_path / "b")).extra["epoch"] == 7
