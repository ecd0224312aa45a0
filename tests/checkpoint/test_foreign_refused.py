"""Files that no reader may follow: pickles that want classes, and archives of other tools."""

from __future__ import annotations

import argparse
import io
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_files import make_model, make_tensors, write_legacy, write_torch
from hostile_pickles import replace_record, wrap

from anyrig.checkpoint.foreign.read import read_foreign
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


def test_deeply_nested_values_are_no_problem(tmp_path: Path) -> None:
    write_torch(tmp_path / "a.pt")
    depth = 100_000
    replace_record(
        tmp_path / "a.pt", "/data.pkl", lambda _: wrap(b"]" * depth + b"a" * (depth - 1))
    )
    with pytest.raises(CheckpointError, match="holds no named tensors"):
        read_foreign(tmp_path / "a.pt")
