"""Checkpoints that other tools wrote are recognised by their contents, and read."""

from __future__ import annotations

import io
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from foreign_files import (
    FILES,
    FOLDERS,
    make_model,
    make_optimizer_state,
    make_tensors,
    write_hugging_face,
    write_legacy,
    write_lightning,
    write_nested,
    write_safetensors,
    write_torch,
)
from torch import nn

from anyrig.checkpoint.consolidate import consolidate
from anyrig.checkpoint.convert import convert
from anyrig.checkpoint.foreign.read import read_foreign
from anyrig.checkpoint.foreign.recognise import recognise
from anyrig.checkpoint.foreign.state import Format
from anyrig.errors import CheckpointError

EXPECTED = {
    "plain.pt": (Format.TORCH, "it is a zip archive, as torch.save writes"),
    "wrapped.pth": (Format.TORCH, "it is a zip archive, as torch.save writes"),
    "nested.pt": (
        Format.TORCH,
        "it is a zip archive, as torch.save writes; the tensors are under 'model_state_dict'",
    ),
    "legacy.pt": (
        Format.LEGACY_TORCH,
        "it begins with PyTorch's magic number; the tensors are under 'state_dict'",
    ),
    "model.safetensors": (Format.SAFETENSORS, "it begins with a length and a JSON header"),
    "lightning.ckpt": (
        Format.LIGHTNING,
        "it has a state_dict and pytorch-lightning_version 2.4.0",
    ),
    "hugging_face": (Format.HUGGING_FACE, "it has the index model.safetensors.index.json"),
    "hugging_face_torch": (
        Format.HUGGING_FACE_TORCH,
        "it has the index pytorch_model.bin.index.json",
    ),
    "accelerate": (
        Format.ACCELERATE,
        "next to the model, it has optimizer.bin, random_states_0.pkl, scaler.pt, scheduler.bin",
    ),
    "distributed": (
        Format.DISTRIBUTED,
        "it has a .metadata file; the tensors are under 'model'",
    ),
}
EVERY = FILES | FOLDERS


@pytest.mark.parametrize("name", EVERY)
def test_every_format_gives_the_model_s_tensors_and_the_reason(name: str, tmp_path: Path) -> None:
    state = read_foreign(EVERY[name](tmp_path / name))
    assert (state.recognition.format, state.recognition.reason) == EXPECTED[name]
    expected = make_tensors()
    plain = state.plain_tensors()
    assert plain.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(plain[key], tensor, rtol=0, atol=0)
        assert plain[key].device.type == "cpu"
    make_model().load_state_dict(state.fit_names(expected))


@pytest.mark.parametrize("name", FILES)
def test_the_content_decides_whatever_the_file_is_called(name: str, tmp_path: Path) -> None:
    path = FILES[name](tmp_path / name).rename(tmp_path / "other.bin")
    assert read_foreign(path).recognition.format is EXPECTED[name][0]


def test_optimizer_and_epoch_are_kept(tmp_path: Path) -> None:
    expected = make_optimizer_state()
    for path in (write_nested(tmp_path / "a.pt"), write_nested(tmp_path / "b.pt", "model")):
        extra = read_foreign(path).extra
        assert extra["epoch"] == 7
        assert extra["optimizer"]["param_groups"] == expected["param_groups"]
        for number, state in expected["state"].items():
            torch.testing.assert_close(extra["optimizer"]["state"][number], state)
    extra = read_foreign(write_legacy(tmp_path / "c.pt")).extra
    assert extra == {"epoch": 7}
    extra = read_foreign(write_lightning(tmp_path / "d.ckpt")).extra
    assert (extra["epoch"], extra["global_step"]) == (2, 300)
    assert extra["lr_schedulers"] == [{"last_epoch": 2, "_last_lr": [0.001]}]
    assert extra["optimizer_states"][0]["param_groups"] == expected["param_groups"]


def test_accelerate_s_pickles_of_objects_stay_unread(tmp_path: Path) -> None:
    state = read_foreign(FOLDERS["accelerate"](tmp_path / "a"))
    assert state.extra.keys() == {"optimizer", "scheduler", "scaler"}
    assert state.extra["scheduler"] == {"last_epoch": 3, "_last_lr": [0.1]}
    assert state.unread == {
        "random_states_0.pkl": "a pickle of whole objects, which could run code"
    }


def test_a_further_model_of_accelerate_is_named(tmp_path: Path) -> None:
    folder = FOLDERS["accelerate"](tmp_path / "a")
    write_safetensors(folder / "model_1.safetensors")
    state = read_foreign(folder)
    assert state.tensors.keys() == make_tensors().keys()
    assert state.unread["model_1.safetensors"].startswith("a further model; give this file")


def test_a_flat_distributed_checkpoint_is_read(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as distributed_checkpoint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "assuming single process"
        distributed_checkpoint.save(make_tensors(), checkpoint_id=tmp_path / "a")
    state = read_foreign(tmp_path / "a")
    torch.testing.assert_close(dict(state.tensors), make_tensors())
    convert(tmp_path / "a", tmp_path / "a.safetensors")
    consolidate(tmp_path / "a", tmp_path / "b.safetensors")
    one, other = (read_foreign(tmp_path / f"{name}.safetensors").tensors for name in "ab")
    torch.testing.assert_close(dict(one), dict(other))


def test_a_distributed_checkpoint_keeps_values_and_lists(tmp_path: Path) -> None:
    extra = read_foreign(FOLDERS["distributed"](tmp_path / "a")).extra
    assert extra["epoch"] == 7
    expected = make_optimizer_state()
    assert extra["optimizer"]["param_groups"] == expected["param_groups"]
    torch.testing.assert_close(
        extra["optimizer"]["state"]["0"]["exp_avg"], expected["state"][0]["exp_avg"]
    )


def test_tensors_of_a_zip_archive_and_of_safetensors_are_mapped(tmp_path: Path) -> None:
    tensors = {"large": torch.zeros(1 << 20)}
    torch.save(tensors, tmp_path / "large.pt")
    from safetensors.torch import save_file

    save_file(tensors, tmp_path / "large.safetensors")
    kept = [read_foreign(tmp_path / f"large{kind}").tensors for kind in (".pt", ".safetensors")]
    mapped = Path("/proc/self/maps").read_text()
    assert "large.pt" in mapped
    assert "large.safetensors" in mapped
    for each in kept:  # a private mapping: the file keeps its contents
        each["large"].fill_(1)
    assert not read_foreign(tmp_path / "large.pt").tensors["large"].any()


def write_as_cuda(path: Path) -> Path:
    """Write a state dict whose tensors say that they were on ``cuda:3``."""
    buffer = io.BytesIO()
    torch.save(make_tensors(), buffer)
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(path, "w") as target:
        for record in source.infolist():
            content = source.read(record)
            if record.filename.endswith("/data.pkl"):
                cpu, cuda = b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:3"
                assert cpu in content
                content = content.replace(cpu, cuda)
            target.writestr(record.filename, content)
    return path


def test_a_file_written_on_cuda_is_read_without_it(tmp_path: Path) -> None:
    state = read_foreign(write_as_cuda(tmp_path / "a.pt"))
    assert {tensor.device.type for tensor in state.tensors.values()} == {"cpu"}
    torch.testing.assert_close(dict(state.tensors), make_tensors())
    content = write_legacy(tmp_path / "b.pt").read_bytes()
    assert content.count(b"X\x03\x00\x00\x00cpu") == 1
    (tmp_path / "b.pt").write_bytes(
        content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:3")
    )
    assert {t.device.type for t in read_foreign(tmp_path / "b.pt").tensors.values()} == {"cpu"}


def test_names_fit_a_model_with_or_without_a_wrapper(tmp_path: Path) -> None:
    plain, wrapped = make_model(), nn.DataParallel(make_model())
    for name in ("plain.pt", "wrapped.pth", "lightning.ckpt"):
        state = read_foreign(EVERY[name](tmp_path / name))
        for model in (plain, wrapped):
            model.load_state_dict(state.fit_names(model.state_dict().keys()))


def test_a_compiled_model_s_names_become_plain(tmp_path: Path) -> None:
    torch.save({f"_orig_mod.{k}": v for k, v in make_tensors().items()}, tmp_path / "a.pt")
    state = read_foreign(tmp_path / "a.pt")
    assert state.plain_tensors().keys() == make_tensors().keys()


def test_names_that_would_become_one_stay_as_they_are(tmp_path: Path) -> None:
    torch.save({"_orig_mod.a": torch.ones(1), "a": torch.zeros(1)}, tmp_path / "a.pt")
    assert read_foreign(tmp_path / "a.pt").plain_tensors().keys() == {"_orig_mod.a", "a"}


def test_one_of_several_state_dicts_is_chosen_by_its_key(tmp_path: Path) -> None:
    path = tmp_path / "gan.pt"
    torch.save({"generator": make_tensors(), "critic": {"w": torch.ones(2)}, "epoch": 1}, path)
    with pytest.raises(CheckpointError, match=r"several state dicts: 'generator', 'critic'\. Choo"):
        read_foreign(path)
    state = read_foreign(path, key="critic")
    assert state.tensors.keys() == {"w"}
    assert state.extra.keys() == {"generator", "epoch"}
    with pytest.raises(CheckpointError, match="no state dict under 'epoch'"):
        read_foreign(path, key="epoch")


def test_the_only_state_dict_is_found_under_an_unusual_key(tmp_path: Path) -> None:
    torch.save({"policy": make_tensors(), "epoch": 1}, tmp_path / "a.pt")
    state = read_foreign(tmp_path / "a.pt")
    assert state.extra == {"epoch": 1}
    assert state.recognition.reason.endswith("the tensors are under 'policy'")


def test_tensors_next_to_values_are_divided(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "epoch": 1}, tmp_path / "a.pt")
    state = read_foreign(tmp_path / "a.pt")
    assert (state.tensors.keys(), state.extra) == ({"w"}, {"epoch": 1})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2], "holds a list, not a dict of tensors"),
        ({"epoch": 1, "lr": 0.1}, r"holds no named tensors.*'epoch' \(int\), 'lr' \(float\)"),
        ({}, "it is empty"),
    ],
)
def test_an_object_without_names_is_refused(value: object, message: str, tmp_path: Path) -> None:
    torch.save(value, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=message):
        read_foreign(tmp_path / "a.pt")


def test_a_folder_with_one_safetensors_file_of_any_name_is_read(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "adapter_model.safetensors")
    assert recognise(tmp_path).reason == "adapter_model.safetensors is its only .safetensors file"
    assert read_foreign(tmp_path).tensors.keys() == make_tensors().keys()
    write_safetensors(tmp_path / "second.safetensors")
    with pytest.raises(CheckpointError, match="has 2 files that could be the model"):
        read_foreign(tmp_path)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize("has_index", [True, False])
def test_hugging_face_s_cache_of_links_is_read(kind: str, has_index: bool, tmp_path: Path) -> None:
    written = write_hugging_face(tmp_path / "written", kind)
    if not has_index:
        next(written.glob("*.index.json")).unlink()
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b/snapshots/123"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(written.iterdir())):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert read_foreign(snapshot).tensors.keys() == make_tensors().keys()
    consolidate(snapshot, tmp_path / "whole.safetensors")
    torch.testing.assert_close(
        dict(read_foreign(tmp_path / "whole.safetensors").tensors), make_tensors()
    )


def test_a_file_without_checksums_is_read(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        write_torch(tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert read_foreign(tmp_path / "a.pt").tensors.keys() == make_tensors().keys()


def test_what_is_no_tensor_beside_the_model_is_extra(tmp_path: Path) -> None:
    state = {"w": torch.ones(2), "q._extra_state": {"scale": 3}}
    torch.save({"model": state, "epoch": 1}, tmp_path / "one.pt")
    extra = read_foreign(tmp_path / "one.pt").extra
    assert extra == {"epoch": 1, "model": {"q._extra_state": {"scale": 3}}}
