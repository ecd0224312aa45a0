"""Headers of safetensors files with false sizes, ranges, shapes and keys are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from foreign_files import make_tensors, write_safetensors

from anyrig.checkpoint.foreign.read import read_foreign
from anyrig.checkpoint.safetensors_header import read_header
from anyrig.errors import CheckpointDamagedError


def make_safetensors(entries: object, data: bytes = bytes(8), length: int | None = None) -> bytes:
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(start: int, stop: int, shape: object = (1,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (make_safetensors({}, length=2**63), "header should take 9223372036854775808 bytes"),
        (make_safetensors({}, length=1000), "should take 1000 bytes, but the file has 18 bytes"),
        (make_safetensors(b"{" * 50000), "nested too deeply|is not valid"),
        (make_safetensors(b'{"a": 1' + b"\xff"), "its header is not valid"),
        (make_safetensors({"a": entry(0, 4), "b": entry(2, 6)}), "'b' overlaps the tensor before"),
        (make_safetensors({"a": entry(0, 4), "b": entry(0, 4)}), "'b' overlaps the tensor before"),
        (make_safetensors({"a": entry(0, 3)}), "needs 4 bytes, but its range has 3"),
        (make_safetensors({"a": entry(4, 8)}), "'a' leaves a gap: it starts at 4, not 0"),
        (make_safetensors({"a": entry(0, 4)}), "take 4 bytes, but 8 bytes follow"),
        (make_safetensors({"a": entry(0, 8, [2])}, bytes(7)), "take 8 bytes, but 7 bytes follow"),
        (make_safetensors({"a": entry(8, 0, [2])}), "needs 8 bytes, but its range has -8"),
        (make_safetensors({"a": entry(0, 8, [-2])}), r"has the shape \[-2\]"),
        (make_safetensors({"a": entry(0, 4, [True])}), r"has the shape \[True\]"),
        (make_safetensors({"a": entry(0, 8, [2**70])}), "has the shape"),
        (make_safetensors({"a": entry(0, 8, "two")}), "has the shape 'two'"),
        (make_safetensors({"a": entry(0, 8, [2], "F31")}), "has the unknown dtype 'F31'"),
        (make_safetensors({"a": entry(0, 8, [2], ["F32"])}), "has the unknown dtype"),
        (make_safetensors({"a": {"dtype": "F32"}}), "is not a dtype, a shape and data_offsets"),
        (make_safetensors({"a": None}), "is not a dtype, a shape and data_offsets"),
        (
            make_safetensors({"__metadata__": {"a": 1}, "a": entry(0, 8, [2])}),
            "has values that are not strings",
        ),
        (make_safetensors(b'{"a": 1, "a": 2}'), "it has the key 'a' twice"),
    ],
)
def test_a_false_safetensors_header_is_refused(
    content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(CheckpointDamagedError, match=message):
        read_foreign(tmp_path / "a")


def test_a_true_safetensors_header_is_read(tmp_path: Path) -> None:
    header = read_header(write_safetensors(tmp_path / "a"))
    assert header.metadata == {"format": "pt", "note": "by hand"}
    expected = make_tensors()
    assert header.tensors.keys() == expected.keys()
    content = (tmp_path / "a").read_bytes()
    for name, each in header.tensors.items():
        assert each.shape == tuple(expected[name].shape)
        assert content[each.start : each.stop] == expected[name].numpy().tobytes()


TOO_MANY = "needs too many bytes, but its range has 4"


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ([2**62] * 40, TOO_MANY),
        ([3] * 5_000, TOO_MANY),
        ([2**63 - 1, 2**63 - 1], TOO_MANY),
        ([1] * 5_000 + [2], "needs 8 bytes, but its range has 4"),
        ([2**62] * 40 + [0], "needs 0 bytes, but its range has 4"),
    ],
    ids=["large", "many", "two", "ones", "none"],
)
def test_a_shape_beyond_all_files_is_refused(
    shape: list[int], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(make_safetensors({"a": entry(0, 4, shape)}, bytes(4)))
    with pytest.raises(CheckpointDamagedError, match=problem) as caught:
        read_header(path)
    assert len(str(caught.value)) < 1_000


def test_a_key_that_is_there_twice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for name in ("b", "x" * 10_000):
        entries = [f'"a{index}":0' for index in range(1_000)] + [f'"{name}":0'] * 2
        header = ("{" + ",".join(entries) + "}").encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        with pytest.raises(CheckpointDamagedError, match=f"the key '{name[:200]}' twice"):
            read_header(path)
