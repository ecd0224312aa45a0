"""Folders whose index, links or pipes lead elsewhere are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from foreign_files import write_accelerate, write_distributed, write_hugging_face

from anyrig.checkpoint.foreign.read import read_foreign
from anyrig.errors import CheckpointDamagedError, CheckpointError, UnsafeFileError


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/etc/passwd", "a/b", "..", ".", "", "a\\b", "a\0b", "sub/../a"],
)
def test_an_index_that_names_a_path_is_refused(name: str, tmp_path: Path) -> None:
    folder = write_hugging_face(tmp_path / "a")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(UnsafeFileError, match="only plain names of files next to it are read"):
        read_foreign(folder)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([], "it has no weight_map"),
        ({"weight_map": []}, "it has no weight_map"),
        ({"weight_map": {}}, "its weight_map is empty"),
        ({"weight_map": {"w": 1}}, "it names a file 1, which is not a string"),
        ({"weight_map": {"w": "none.safetensors"}}, r"names the file 'none\.safetensors', but"),
        (
            {"weight_map": {"w": "model-00001-of-00002.safetensors"}},
            r"has no tensor 'w', which contradicts model\.safetensors\.index\.json",
        ),
        (
            {"weight_map": {"0.weight": "model-00001-of-00002.safetensors"}},
            r"also holds '0\.bias', which contradicts",
        ),
    ],
)
def test_a_false_index_is_refused(index: object, message: str, tmp_path: Path) -> None:
    folder = write_hugging_face(tmp_path / "a")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointDamagedError, match=message):
        read_foreign(folder)


def test_an_index_with_one_name_twice_is_refused(tmp_path: Path) -> None:
    folder = write_hugging_face(tmp_path / "a")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "a", "w": "b"}}')
    with pytest.raises(CheckpointDamagedError, match="has the key 'w' twice"):
        read_foreign(folder)


def test_swapped_shards_are_refused(tmp_path: Path) -> None:
    folder = write_hugging_face(tmp_path / "a")
    one, two = sorted(folder.glob("*.safetensors"))
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    with pytest.raises(CheckpointDamagedError, match="has no tensor"):
        read_foreign(folder)


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_hugging_face, "model-00002-of-00002.safetensors"),
        (write_hugging_face, "model.safetensors.index.json"),
        (write_accelerate, "optimizer.bin"),
        (write_accelerate, "model.safetensors"),
        (write_distributed, "__0_0.distcp"),
        (write_distributed, ".metadata"),
    ],
)
def test_a_link_out_of_the_folder_is_refused(write: Any, name: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeFileError, match=r"is a link to .*elsewhere, outside its folder"):
        read_foreign(folder)


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    folder = write_accelerate(tmp_path / "a")
    (folder / "optimizer.bin").rename(folder / "kept")
    (folder / "optimizer.bin").symlink_to("kept")
    assert "optimizer" in read_foreign(folder).extra


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    folder = write_hugging_face(tmp_path / "a")
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(CheckpointError, match="is not a regular file"):
        read_foreign(folder)
