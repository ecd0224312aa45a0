"""Any recognised checkpoint becomes one safetensors file or one plain torch file."""

from __future__ import annotations

import json
import os
import stat
import tracemalloc
from pathlib import Path

import pytest
import torch
from foreign_files import (
    FILES,
    FOLDERS,
    make_tensors,
    write_hugging_face,
    write_nested,
    write_torch,
    write_wrapped,
)
from safetensors.torch import load_file, save_file, save_model

import anyrig
from anyrig.checkpoint import tensor_files
from anyrig.checkpoint.any_model import read_any_model
from anyrig.checkpoint.atomic_file import open_atomically
from anyrig.checkpoint.compare import compare
from anyrig.checkpoint.consolidate import consolidate
from anyrig.checkpoint.convert import convert
from anyrig.checkpoint.describe import describe
from anyrig.checkpoint.foreign.read import read_foreign
from anyrig.checkpoint.safetensors_header import read_header
from anyrig.errors import CheckpointDamagedError, CheckpointError, UnsafeFileError

EVERY = FILES | FOLDERS
TYPES = [
    *(torch.float16, torch.bfloat16, torch.float64, torch.complex64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
]


@pytest.mark.parametrize("name", EVERY)
def test_every_format_becomes_a_file_that_other_tools_read(name: str, tmp_path: Path) -> None:
    source = EVERY[name](tmp_path / name)
    done = convert(source, tmp_path / "a.safetensors")
    assert done.tensors == len(make_tensors())
    assert done.bytes == (tmp_path / "a.safetensors").stat().st_size
    expected = make_tensors()
    torch.testing.assert_close(load_file(tmp_path / "a.safetensors"), expected, rtol=0, atol=0)
    convert(source, tmp_path / "a.pt")
    loaded = torch.load(tmp_path / "a.pt", weights_only=True)
    torch.testing.assert_close(loaded, expected, rtol=0, atol=0)
    assert read_header(tmp_path / "a.safetensors").metadata == {"format": "pt"}


def test_the_report_says_what_was_renamed_and_left_out(tmp_path: Path) -> None:
    done = convert(write_nested(tmp_path / "a.pt"), tmp_path / "a.safetensors")
    assert (done.renamed, done.left_out) == (0, ("optimizer", "epoch"))
    done = convert(write_wrapped(tmp_path / "b.pt"), tmp_path / "b.safetensors")
    assert (done.renamed, done.left_out) == (len(make_tensors()), ())
    convert(tmp_path / "b.pt", tmp_path / "c.safetensors", keep_names=True)
    assert all(name.startswith("module.") for name in load_file(tmp_path / "c.safetensors"))


def test_every_type_and_form_of_tensor_keeps_its_bits(tmp_path: Path) -> None:
    bits = torch.arange(256, dtype=torch.uint8)
    tied = torch.randn(4, 4)
    tensors = {str(dtype).removeprefix("torch."): bits.clone().view(dtype) for dtype in TYPES}
    tensors |= {"bool": torch.tensor([True, False, True]), "scalar": torch.tensor(3)}
    tensors |= {"empty": torch.empty(0, 5), "transposed": tied.t(), "tied": tied, "row": tied[1]}
    tensors |= {'name with äöü \n "': torch.ones(1)}
    torch.save(tensors, tmp_path / "a.pt")
    convert(tmp_path / "a.pt", tmp_path / "a.safetensors")
    loaded = load_file(tmp_path / "a.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        if tensor.numel():
            ours, theirs = (each.contiguous().reshape(-1) for each in (loaded[name], tensor))
            assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8)), name
    for each in read_header(tmp_path / "a.safetensors").tensors.values():
        assert each.start % 2 == 0 or each.dtype in ("BOOL", "I8", "U8") or "F8" in each.dtype


# PyTorch 2.11 warns when it reads a sparse tensor.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.ones(2, dtype=torch.complex128), r"cannot hold 'a', whose elements are torch\.comp"),
        (torch.eye(2).to_sparse(), r"'a' is torch\.sparse_coo on cpu; only dense"),
        (torch.empty(2, device="meta"), r"'a' is torch\.strided on meta; only dense"),
    ],
)
def test_what_safetensors_cannot_hold_is_refused(
    tensor: torch.Tensor, message: str, tmp_path: Path
) -> None:
    torch.save({"a": tensor}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=message):
        convert(tmp_path / "a.pt", tmp_path / "a.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_a_tensor_without_values_is_not_written_to_a_torch_file(tmp_path: Path) -> None:
    torch.save({"a": torch.empty(2, device="meta")}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="'a' is on the meta device, so it has no values"):
        convert(tmp_path / "a.pt", tmp_path / "b.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_a_description_compares_no_checksums(tmp_path: Path) -> None:
    torch.save({"a": torch.full((64,), 1.5)}, tmp_path / "a.pt")
    content = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(content.replace(b"\0\0\xc0\x3f", b"\0\0\xc0\x40", 1))
    assert [each.name for each in describe(tmp_path / "a.pt").tensors] == ["a"]
    with pytest.raises(CheckpointDamagedError, match="Bad CRC-32"):
        convert(tmp_path / "a.pt", tmp_path / "b.pt")


def test_a_view_does_not_drag_its_storage_into_a_torch_file(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1 << 20)[:4]}, tmp_path / "a.pt")
    assert (tmp_path / "a.pt").stat().st_size > 4_000_000
    convert(tmp_path / "a.pt", tmp_path / "b.pt")
    assert (tmp_path / "b.pt").stat().st_size < 10_000


def test_an_existing_file_is_kept_unless_overwritten(tmp_path: Path) -> None:
    source, target = write_torch(tmp_path / "a.pt"), tmp_path / "b.safetensors"
    target.write_text("precious")
    with pytest.raises(CheckpointError, match=r"b\.safetensors exists already, and was not chang"):
        convert(source, target)
    assert target.read_text() == "precious"
    convert(source, target, overwrite=True)
    assert read_foreign(target).tensors.keys() == make_tensors().keys()
    assert stat.S_IMODE(target.stat().st_mode) & 0o600 == 0o600
    convert(source, source, overwrite=True)
    assert read_foreign(source).tensors.keys() == make_tensors().keys()


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before")

    def fail() -> None:
        with open_atomically(tmp_path / "a", overwrite=True) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (tmp_path / "a").read_text() == "before"
    assert os.listdir(tmp_path) == ["a"]  # noqa: PTH208


def test_a_name_taken_meanwhile_is_kept(tmp_path: Path) -> None:
    def race() -> None:
        with open_atomically(tmp_path / "a") as file:
            file.write(b"ours")
            (tmp_path / "a").write_text("theirs")

    with pytest.raises(CheckpointError, match="exists already"):
        race()
    assert (tmp_path / "a").read_text() == "theirs"
    assert os.listdir(tmp_path) == ["a"]  # noqa: PTH208


def test_other_targets_are_refused(tmp_path: Path) -> None:
    source = write_torch(tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"ends with '\.txt'; name the target \*\.safetensor"):
        convert(source, tmp_path / "a.txt")
    with pytest.raises(CheckpointError, match="is not a folder; create it first"):
        convert(source, tmp_path / "no" / "a.safetensors")
    (tmp_path / "b.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="is a folder; name a file"):
        convert(source, tmp_path / "b.safetensors", overwrite=True)


@pytest.mark.parametrize("name", ["hugging_face", "hugging_face_torch", "distributed"])
def test_shards_become_one_file(name: str, tmp_path: Path) -> None:
    folder = FOLDERS[name](tmp_path / name)
    done = consolidate(folder, tmp_path / "a.safetensors")
    assert done.tensors == len(make_tensors())
    assert done.bytes == (tmp_path / "a.safetensors").stat().st_size
    loaded = load_file(tmp_path / "a.safetensors")
    torch.testing.assert_close(loaded, make_tensors(), rtol=0, atol=0)
    with pytest.raises(CheckpointError, match="exists already"):
        consolidate(folder, tmp_path / "a.safetensors")


def test_consolidating_copies_in_a_small_buffer(tmp_path: Path) -> None:
    weight_map = {}
    for number in range(4):
        names = [f"{number}.{part}" for part in range(3)]
        save_file(
            {name: torch.full((1 << 20,), number + 0.5) for name in names},
            tmp_path / f"model-{number}.safetensors",
        )
        weight_map |= dict.fromkeys(names, f"model-{number}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    tracemalloc.start()
    done = consolidate(tmp_path, tmp_path / "all.safetensors")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert done.bytes > 12 * 2**22
    assert peak_bytes < 2**22  # one tensor
    assert load_file(tmp_path / "all.safetensors")["3.2"][-1] == 3.5


def test_the_other_names_of_tied_weights_are_kept(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    save_model(model, str(tmp_path / "model-1.safetensors"))
    expected = model.state_dict()
    found = read_foreign(tmp_path / "model-1.safetensors").tensors
    torch.testing.assert_close(dict(found), dict(expected))
    weight_map = dict.fromkeys(expected, "model-1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    torch.testing.assert_close(dict(read_foreign(tmp_path).tensors), dict(expected))
    consolidate(tmp_path, tmp_path / "all.safetensors")
    torch.testing.assert_close(load_file(tmp_path / "all.safetensors"), dict(expected))
    convert(tmp_path, tmp_path / "a.pt")
    torch.testing.assert_close(torch.load(tmp_path / "a.pt"), dict(expected))


def test_a_bad_shard_leaves_no_file(tmp_path: Path) -> None:
    folder = write_hugging_face(tmp_path / "a")
    shard = sorted(folder.glob("*.safetensors"))[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(CheckpointDamagedError, match="00002-of-00002"):
        consolidate(folder, tmp_path / "a.safetensors")
    shard.write_bytes(sorted(folder.glob("*.safetensors"))[0].read_bytes())
    with pytest.raises(CheckpointDamagedError, match="contradicts"):
        consolidate(folder, tmp_path / "a.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../a"}}))
    with pytest.raises(UnsafeFileError):
        consolidate(folder, tmp_path / "a.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_one_file_is_not_consolidated(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"in one file already: .* anyrig checkpoint convert"):
        consolidate(write_torch(tmp_path / "a.pt"), tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=r"name it \*\.safetensors"):
        consolidate(write_hugging_face(tmp_path / "a"), tmp_path / "a.pt")


def test_shards_of_anyrig_are_joined_compared_and_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    whole = anyrig.save(tmp_path / "whole", model=model, optimizer=optimizer, step=1)
    monkeypatch.setattr(tensor_files, "LARGEST_FILE_BYTES", 100)
    parts = anyrig.save(tmp_path / "parts", model=model, optimizer=optimizer, step=1)
    assert len([*parts.glob("model-*.safetensors")]) == 2
    one, other = (read_any_model(path, whole=True).tensors for path in (whole, tmp_path / "parts"))
    assert compare(one, other).is_equal
    assert {"optimizer/0.weight.exp_avg", "2.weight"} < one.keys()
    consolidate(tmp_path / "parts", tmp_path / "joined.safetensors")
    convert(parts, tmp_path / "converted.pt")
    expected = dict(model.state_dict())
    torch.testing.assert_close(load_file(tmp_path / "joined.safetensors"), expected)
    torch.testing.assert_close(torch.load(tmp_path / "converted.pt"), expected)
    assert {each.name for each in describe(parts).tensors} >= expected.keys()


def test_one_of_several_modules_of_anyrig_is_chosen_by_its_key(tmp_path: Path) -> None:
    anyrig.save(tmp_path / "a", critic=torch.nn.Linear(2, 1), actor=torch.nn.Linear(3, 1))
    with pytest.raises(CheckpointError, match=r"has no 'model', but actor, critic\. Choose one"):
        convert(tmp_path / "a", tmp_path / "a.pt")
    convert(tmp_path / "a", tmp_path / "a.pt", key="critic")
    assert torch.load(tmp_path / "a.pt")["weight"].shape == (1, 2)
    assert {"critic/weight", "actor/bias"} < read_any_model(
        tmp_path / "a", whole=True
    ).tensors.keys()


LAZY = {
    "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "adjoint": torch.tensor([[1 + 2j, 3 - 4j], [5j, 6]]).adjoint(),
    "negative": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "negative of a part": torch.tensor([[1 + 2j, 3 - 4j], [5j, 6]]).conj().imag[:, 1],
    "conjugate and negative": torch.view_as_real(torch.tensor([1 + 2j])).sum(-1).conj(),
    "conjugate of half": torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex128).conj(),
}


@pytest.mark.parametrize("name", LAZY)
@pytest.mark.parametrize("target", ["b.safetensors", "b.pt"])
def test_a_lazily_conjugated_or_negated_view_keeps_its_values(
    name: str, target: str, tmp_path: Path
) -> None:
    tensor = LAZY[name]
    torch.save({"a": tensor}, tmp_path / "a.pt")
    if tensor.dtype == torch.complex128 and target.endswith("safetensors"):
        with pytest.raises(CheckpointError, match=r"'a', whose elements are torch.complex128"):
            convert(tmp_path / "a.pt", tmp_path / target)
        return
    convert(tmp_path / "a.pt", tmp_path / target)
    assert torch.equal(read_foreign(tmp_path / target).tensors["a"], tensor)


@pytest.mark.parametrize("name", LAZY)
def test_lazy_views_are_saved_gathered_and_consolidated(name: str, tmp_path: Path) -> None:
    tensor = LAZY[name]
    module = torch.nn.Module()
    module.register_buffer("a", tensor)
    other = torch.nn.Module()
    other.register_buffer("a", torch.zeros_like(tensor.resolve_conj().resolve_neg()))
    anyrig.save(tmp_path / "series", model=module, value=tensor)
    found = anyrig.load(tmp_path / "series", model=other)
    assert torch.equal(other.a, tensor)
    assert torch.equal(found["value"], tensor)
    if tensor.dtype == torch.complex128:
        return
    torch.save({"a": tensor}, tmp_path / "pytorch_model-00001-of-00001.bin")
    index = {"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    consolidate(tmp_path, tmp_path / "whole.safetensors")
    assert torch.equal(load_file(tmp_path / "whole.safetensors")["a"], tensor)


def test_tensors_that_safetensors_cannot_hold_are_not_lost(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    module.register_buffer("wide", torch.ones(2, dtype=torch.complex128))
    module.register_buffer("unsigned", torch.ones(2, dtype=torch.uint16))
    module.register_buffer("sparse", torch.eye(2).to_sparse())
    folder = anyrig.save(tmp_path / "series", model=module)
    convert(folder, tmp_path / "a.pt")
    found = read_foreign(tmp_path / "a.pt").tensors
    assert found.keys() == {"weight", "bias", "wide", "unsigned", "sparse"}
    assert torch.equal(found["wide"], module.wide)
    with pytest.raises(CheckpointError, match=r"'(wide|sparse)'"):
        convert(folder, tmp_path / "a.safetensors")
    shown = {each.name: each.file for each in describe(folder).tensors}
    assert shown["wide"] == shown["sparse"] == "values.pt"
