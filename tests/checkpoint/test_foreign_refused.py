"""Files that no reader may follow: pickles that want classes, false sizes, ways out of a folder."""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_files import (
    make_model,
    make_tensors,
    write_accelerate,
    write_distributed,
    write_hugging_face,
    write_legacy,
    write_safetensors,
    write_torch,
)
from hostile_pickles import change_metadata, replace_record, text, wrap

from anyrig.checkpoint.foreign.read import read_foreign
from anyrig.checkpoint.safetensors_header import read_header
from anyrig.errors import CheckpointDamagedError, CheckpointError, UnsafeFileError


def test_a_pickled_module_is_refused_with_every_class_it_wants(tmp_path: Path) -> None:
    for is_zip in (True, False):
        torch.save(make_model(), tmp_path / "a.pt", _use_new_zipfile_serialization=is_zip)
        with pytest.raises(UnsafeFileError) as caught:
            read_foreign(tmp_path / "a.pt")
        message = str(caught.value)
        for name in ("container.Sequential", "linear.Linear", "batchnorm.BatchNorm1d"):
            assert f"torch.nn.modules.{name}" in message
        assert "Nothing was run" in message
        assert "weights_only=False" in message


def test_a_class_that_the_program_allows_is_read(tmp_path: Path) -> None:
    torch.save(
        {"model": make_tensors(), "arguments": argparse.Namespace(lr=0.1)}, tmp_path / "a.pt"
    )
    with pytest.raises(UnsafeFileError, match=r"imports argparse\.Namespace, and"):
        read_foreign(tmp_path / "a.pt")
    with torch.serialization.safe_globals([argparse.Namespace]):
        state = read_foreign(tmp_path / "a.pt")
    assert state.extra == {"arguments": argparse.Namespace(lr=0.1)}


def test_an_ordinary_pickle_is_refused_with_what_it_wants(tmp_path: Path) -> None:
    for protocol in (2, 3, 4, 5):
        (tmp_path / "a.pkl").write_bytes(pickle.dumps({"a": Path("b")}, protocol))
        with pytest.raises(UnsafeFileError, match=r"ordinary pickle.*imports pathlib"):
            read_foreign(tmp_path / "a.pkl")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"hello world", r"is not recognised: it begins with b'hello wo'\. anyrig reads a torch"),
        (b"\x80\x02}.", "ordinary pickle"),
        (b"\x80\x04nonsense", "its pickle cannot be parsed"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_foreign(tmp_path / "a")


def test_other_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_foreign(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("")
    with pytest.raises(CheckpointError, match=r"is not recognised: it has notes\.txt\. anyrig rea"):
        read_foreign(tmp_path / "folder")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="is not a regular file"):
        read_foreign(tmp_path / "pipe")


def test_archives_that_torch_save_did_not_write_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    write_torch(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a/constants.pkl", b"")
    with pytest.raises(UnsafeFileError, match="is a TorchScript archive, which holds a program"):
        read_foreign(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", b"")
    with pytest.raises(CheckpointDamagedError, match=r"has 0 records named data\.pkl"):
        read_foreign(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", wrap(b"N"))
    with pytest.raises(CheckpointDamagedError, match="is compressed"):
        read_foreign(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", wrap(b"N"))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a/data.pkl", wrap(b"N"))
    with pytest.raises(CheckpointDamagedError, match=r"has 2 records named data\.pkl, not one"):
        read_foreign(path)


def test_a_tar_archive_of_early_pytorch_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.pt", "w") as archive:
        archive.addfile(tarfile.TarInfo("storages"), io.BytesIO())
    with pytest.raises(CheckpointError, match="is a tar archive, as PyTorch wrote before"):
        read_foreign(tmp_path / "a.pt")


def test_a_torch_file_named_safetensors_is_refused_clearly(tmp_path: Path) -> None:
    write_torch(tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match="is a torch file, although its name ends"):
        read_foreign(tmp_path / "a.safetensors")


def test_a_tensor_larger_than_its_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.zeros(4)}, path)

    def enlarge(content: bytes) -> bytes:
        assert content.count(b"K\x04") == 2  # elements of the storage, and of the tensor
        return content.replace(b"K\x04", b"M\xff\xff")

    replace_record(path, "/data.pkl", enlarge)
    with pytest.raises(CheckpointDamagedError, match="is damaged"):
        read_foreign(path)


def test_a_tensor_that_repeats_one_element_without_end_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1).expand(2**40)}, tmp_path / "a.pt")
    with pytest.raises(CheckpointDamagedError, match=r"'a' of shape .* repeats the same 4 bytes"):
        read_foreign(tmp_path / "a.pt")
    torch.save({"a": torch.ones(1).expand(2**10)}, tmp_path / "a.pt")
    assert read_foreign(tmp_path / "a.pt").tensors["a"].sum() == 2**10


def test_a_changed_byte_of_a_tensor_is_noticed_unless_checksums_are_left_out(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.pt"
    # The checksum of no bytes is 0.
    torch.save({"a": torch.full((64,), 1.5), "empty": torch.empty(0)}, path)
    content = path.read_bytes()
    assert content.count(struct.pack("<f", 1.5) * 64) == 1
    path.write_bytes(content.replace(struct.pack("<f", 1.5), struct.pack("<f", 2.5), 1))
    with pytest.raises(CheckpointDamagedError, match="Bad CRC-32 for file 'a/data/0'"):
        read_foreign(path)
    assert read_foreign(path, is_checked=False).tensors["a"][0] == 2.5


def test_a_legacy_file_that_holds_no_storage_for_a_tensor_is_refused(tmp_path: Path) -> None:
    """PyTorch would return whatever the memory held before."""
    content = write_legacy(tmp_path / "a.pt").read_bytes()
    stream = io.BytesIO(content)
    for _ in range(3):
        pickle.load(stream)
    for _ in pickle_codes(stream):
        pass
    (tmp_path / "a.pt").write_bytes(content[: stream.tell()] + pickle.dumps([], 2))
    with pytest.raises(
        CheckpointDamagedError, match=r"its tensors need .* bytes, but the file has"
    ):
        read_foreign(tmp_path / "a.pt")


def test_a_file_that_begins_like_a_legacy_file_is_an_ordinary_pickle(tmp_path: Path) -> None:
    content = write_legacy(tmp_path / "a.pt").read_bytes()
    assert content[:4] == b"\x80\x02\x8a\x0a"
    (tmp_path / "a.pt").write_bytes(content[:4] + bytes([content[4] ^ 1]) + content[5:])
    with pytest.raises(UnsafeFileError, match="is an ordinary pickle, not a torch file"):
        read_foreign(tmp_path / "a.pt")


def pickle_codes(stream: io.BytesIO) -> Any:
    import pickletools

    return pickletools.genops(stream)


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


def one_tensor(metadata: Any) -> Any:
    return metadata.state_dict_metadata["model.0.weight"]


def stored(metadata: Any, name: str = "model.0.weight") -> Any:
    return next(each for key, each in metadata.storage_data.items() if key.fqn == name)


def drop_stored(metadata: Any) -> None:
    key = next(key for key in metadata.storage_data if key.fqn == "model.0.weight")
    del metadata.storage_data[key]


def overlap(metadata: Any) -> None:
    """Cut a tensor of 4x3 in two chunks of its size together that overlap."""
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


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    folder = write_hugging_face(tmp_path / "a")
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(CheckpointError, match="is not a regular file"):
        read_foreign(folder)


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


def test_deeply_nested_values_are_no_problem(tmp_path: Path) -> None:
    write_torch(tmp_path / "a.pt")
    depth = 100_000
    replace_record(
        tmp_path / "a.pt", "/data.pkl", lambda _: wrap(b"]" * depth + b"a" * (depth - 1))
    )
    with pytest.raises(CheckpointError, match="holds no named tensors"):
        read_foreign(tmp_path / "a.pt")


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
