"""Which part of a file or a folder is the model, and what is reported of the rest."""

from __future__ import annotations

import io
import json
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from foreign_files import FILES, FOLDERS, make_tensors
from hostile_pickles import change_metadata, replace_record
from safetensors.torch import save_file

from anyrig.checkpoint import read_foreign
from anyrig.checkpoint.foreign.contents import MODEL_KEYS
from anyrig.checkpoint.foreign.file_part import open_part
from anyrig.checkpoint.foreign.pickle_scan import scan_pickle
from anyrig.checkpoint.foreign.recognise import recognise
from anyrig.checkpoint.foreign.state import ForeignState, Format, Recognition
from anyrig.checkpoint.integrity import check_integrity
from anyrig.errors import CheckpointDamagedError, CheckpointError, UnsafeFileError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
OLD, NEW = torch.zeros(2), torch.ones(2)


def read_value(path: Path, value: object, key: str | None = None) -> ForeignState:
    torch.save(value, path)
    return read_foreign(path, key=key)


@pytest.mark.parametrize(("first", "second"), [*pairwise(MODEL_KEYS)])
def test_of_usual_keys_the_most_specific_holds_the_model(
    first: str, second: str, tmp_path: Path
) -> None:
    found = read_value(
        tmp_path / "a.pt", {second: {"w": OLD}, first: {"w": NEW}, "odd": {"w": OLD}}
    )
    assert torch.equal(found.tensors["w"], NEW)
    assert found.extra.keys() == {second, "odd"}
    assert found.recognition.reason.endswith(f"the tensors are under {first!r}")


def test_what_a_file_without_tensors_holds_is_listed_up_to_eight(tmp_path: Path) -> None:
    for count, end in ((8, r"'7' \(int\)$"), (9, r"'7' \(int\) and more$")):
        with pytest.raises(CheckpointError, match=rf"holds no named tensors; .*{end}"):
            read_value(tmp_path / "a.pt", {str(number): number for number in range(count)})


def test_a_large_tensor_may_repeat_its_elements(tmp_path: Path) -> None:
    wide = torch.ones(1 << 20).expand(600, 1 << 20)  # 2.5 GB of 4 MB
    assert read_value(tmp_path / "a.pt", {"w": wide}).tensors["w"].shape == (600, 1 << 20)


class TestLightning:
    @pytest.mark.parametrize(
        ("more", "reason"),
        [
            ({"lightning_version": "2.6"}, "it has a state_dict and lightning_version 2.6"),
            (
                {"epoch": 1, "global_step": 2, "loops": {}},
                "it has a state_dict, epoch, global_step, loops",
            ),
            ({"epoch": 1, "global_step": 2}, None),
            ({"epoch": 1, "callbacks": {}, "loops": {}}, None),
        ],
    )
    def test_is_recognised_by_what_its_trainer_writes(
        self, more: dict[str, Any], reason: str | None, tmp_path: Path
    ) -> None:
        found = read_value(tmp_path / "a.pt", {"state_dict": {"model.w": NEW}, **more})
        assert (found.recognition.format is Format.LIGHTNING) == (reason is not None)
        assert reason in (None, found.recognition.reason)
        assert found.plain_tensors().keys() == ({"w"} if reason else {"model.w"})
        assert found.extra.keys() == more.keys()

    def test_a_prefix_that_not_every_name_has_stays(self, tmp_path: Path) -> None:
        content = {"state_dict": {"model.w": NEW, "loss.w": NEW}, "lightning_version": "2"}
        found = read_value(tmp_path / "a.ckpt", content)
        assert found.plain_tensors().keys() == {"model.w", "loss.w"}

    def test_another_state_dict_is_chosen_by_its_key(self, tmp_path: Path) -> None:
        content = {"state_dict": {"w": OLD}, "ema": {"w": NEW}, "lightning_version": "2"}
        found = read_value(tmp_path / "a.ckpt", content, key="ema")
        assert found.recognition.format is Format.LIGHTNING
        assert torch.equal(found.tensors["w"], NEW)


def test_the_metadata_of_a_safetensors_file_is_extra(tmp_path: Path) -> None:
    save_file({"w": NEW}, tmp_path / "a", metadata={"epoch": "3"})
    assert read_foreign(tmp_path / "a").extra == {"metadata": {"epoch": "3"}}
    save_file({"w": NEW}, tmp_path / "b")
    assert read_foreign(tmp_path / "b").extra == {}


def test_every_file_of_accelerate_is_read_or_explained(tmp_path: Path) -> None:
    folder = FOLDERS["accelerate"](tmp_path / "a")
    for name in ("optimizer_1.bin", "scheduler_12.bin"):
        torch.save({"name": name}, folder / name)
    pickles = (
        *("sampler.bin", "sampler_1.bin", "dl_state_dict.bin", "dl_state_dict_1.bin"),
        *("custom_checkpoint_0.pkl", "random_states_11.pkl"),
    )
    models = ("model_1.safetensors", "pytorch_model_2.bin")
    for name in (*pickles, *models, "notes.txt"):
        (folder / name).write_bytes(b"cposix\nsystem\n.")
    found = read_foreign(folder)
    states = {"optimizer", "optimizer_1", "scheduler", "scheduler_12", "scaler"}
    assert found.extra.keys() == states
    assert found.extra["scheduler_12"] == {"name": "scheduler_12.bin"}
    why = dict(found.unread)
    assert why.pop("notes.txt") == "it has no tensors of the model"
    assert why.pop("random_states_0.pkl")
    for name in models:
        assert why.pop(name) == "a further model; give this file itself to read it"
    assert why == dict.fromkeys(pickles, "a pickle of whole objects, which could run code")


def test_random_states_alone_show_accelerate(tmp_path: Path) -> None:
    save_file({"w": NEW}, tmp_path / "model.safetensors")
    (tmp_path / "random_states_0.pkl").write_bytes(pickle.dumps({}))
    found = recognise(tmp_path)
    assert found == Recognition(Format.ACCELERATE, "next to the model, it has random_states_0.pkl")


def test_each_file_that_is_not_read_has_its_reason(tmp_path: Path) -> None:
    save_file({"w": NEW}, tmp_path / "model.safetensors")
    tensors = [f"other{suffix}" for suffix in (".safetensors", ".bin", ".pt", ".pth", ".ckpt")]
    for name in (*tensors, "x.index.json", "config.json"):
        (tmp_path / name).touch()
    (tmp_path / "step.pt").mkdir()
    expected = dict.fromkeys(
        tensors, "not a part of the model that was read; give this file itself"
    )
    expected["x.index.json"] = "the index of another save, or of another model"
    expected["config.json"] = "it has no tensors of the model"
    expected["step.pt"] = "a folder; give the folder itself to read it"
    found = read_foreign(tmp_path)
    assert dict(found.unread) == expected
    assert [*found.unread] == sorted(expected)


def write_index(folder: Path, index: str, file: str, value: torch.Tensor) -> None:
    write = torch.save if file.endswith(".bin") else save_file
    write({"w": value.clone()}, folder / file)
    (folder / index).write_text(json.dumps({"weight_map": {"w": file}}))


class TestHuggingFace:
    """The first of the files in this order is read."""

    ORDER = (
        "model.safetensors",
        "model.safetensors.index.json",
        "other.safetensors.index.json",
        "pytorch_model.bin",
        "model.bin",
        "pytorch_model.bin.index.json",
    )

    @pytest.mark.parametrize(("first", "second"), [*pairwise(ORDER)])
    def test_the_first_in_transformers_order_is_read(
        self, first: str, second: str, tmp_path: Path
    ) -> None:
        for number, (name, value) in enumerate(((first, NEW), (second, OLD))):
            if name.endswith(".json"):
                kind = "bin" if ".bin." in name else "safetensors"
                write_index(tmp_path, name, f"shard{number}.{kind}", value)
            else:
                write = torch.save if name.endswith(".bin") else save_file
                write({"w": value.clone()}, tmp_path / name)
        found = read_foreign(tmp_path)
        assert torch.equal(found.tensors["w"], NEW)
        assert second in found.unread
        word = "the index " if first.endswith(".json") else ""
        assert found.recognition.reason == f"it has {word}{first}"

    def test_two_indexes_of_unusual_names_are_refused(self, tmp_path: Path) -> None:
        for name in "ab":
            write_index(tmp_path, f"{name}.bin.index.json", f"{name}.bin", NEW)
        with pytest.raises(
            CheckpointError, match=r"has 2 files that could be the model: a.bin.ind"
        ):
            read_foreign(tmp_path)

    @pytest.mark.parametrize(
        "name", ["optimizer.bin", "scheduler.bin", "sampler.bin", "training_args.bin"]
    )
    def test_other_files_with_the_suffix_are_no_models(self, name: str, tmp_path: Path) -> None:
        torch.save({"w": OLD}, tmp_path / name)
        with pytest.raises(CheckpointError, match=rf"is not recognised: it has {name}\. anyrig r"):
            read_foreign(tmp_path)
        torch.save({"w": NEW}, tmp_path / "weights.bin")
        assert torch.equal(read_foreign(tmp_path).tensors["w"], NEW)

    def test_more_numbered_files_than_their_names_say_are_refused(self, tmp_path: Path) -> None:
        for number in (1, 2, 3):
            torch.save({f"w{number}": NEW}, tmp_path / f"m-{number}-of-2.bin")
        with pytest.raises(CheckpointDamagedError, match="has 3 of 2 numbered files, such as m-1-"):
            read_foreign(tmp_path)

    def test_numbered_files_are_read_by_number(self, tmp_path: Path) -> None:
        for number in range(1, 12):
            torch.save({f"w{number}": NEW}, tmp_path / f"m-{number}-of-11.bin")
        assert [*read_foreign(tmp_path).tensors] == [f"w{number}" for number in range(1, 12)]

    def test_a_shard_with_more_than_tensors_is_refused(self, tmp_path: Path) -> None:
        torch.save({"w": NEW, "epoch": 3}, tmp_path / "pytorch_model.bin")
        with pytest.raises(CheckpointDamagedError, match="holds epoch in addition to tensors, so"):
            read_foreign(tmp_path)


def test_a_folder_that_is_not_recognised_lists_eight_files(tmp_path: Path) -> None:
    for name in "ihgfedcba":
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=r"it has a, b, c, d, e, f, g, h and more\. anyrig"):
        read_foreign(tmp_path)
    (tmp_path / "i").unlink()
    with pytest.raises(CheckpointError, match=r"it has a, b, c, d, e, f, g, h\. anyrig"):
        read_foreign(tmp_path)


def test_names_that_would_become_one_are_not_fitted(tmp_path: Path) -> None:
    found = read_value(tmp_path / "a.pt", {"_orig_mod.a": NEW, "a": OLD})
    assert found.fit_names(["a"]).keys() == {"_orig_mod.a", "a"}
    found = read_value(tmp_path / "b.pt", {"module.a": NEW})
    assert found.fit_names(["a", "_orig_mod.a"]).keys() == {"module.a"}
    assert found.fit_names(["_orig_mod.a"]).keys() == {"_orig_mod.a"}


def test_numbers_that_do_not_count_from_0_are_keys_of_a_dict(tmp_path: Path) -> None:
    dcp.save({"model": {"w": NEW}, "list": [NEW, OLD, NEW]}, checkpoint_id=tmp_path / "a")
    found = read_foreign(tmp_path / "a").extra["list"]
    assert [each.tolist() for each in found] == [[1, 1], [0, 0], [1, 1]]

    def renumber(metadata: Any) -> None:
        metadata.planner_data["list.0"] = ("list", 5)

    found = read_foreign(change_metadata(tmp_path / "a", renumber)).extra["list"]
    assert {number: each.tolist() for number, each in found.items()} == {
        1: [0, 0],
        2: [1, 1],
        5: [1, 1],
    }


CHECKSUMS = {  # as docs/checkpoints_foreign.md says
    "plain.pt": True,
    "wrapped.pth": True,
    "nested.pt": True,
    "legacy.pt": False,
    "model.safetensors": False,
    "lightning.ckpt": True,
    "hugging_face": False,
    "hugging_face_torch": True,
    "accelerate": False,
    "distributed": True,
}


@pytest.mark.parametrize("name", CHECKSUMS)
def test_a_changed_tensor_is_found_where_the_format_has_checksums(
    name: str, tmp_path: Path
) -> None:
    path = {**FILES, **FOLDERS}[name](tmp_path / name)
    (found,) = check_integrity(path)
    assert found.findings == ()
    has_checksums = CHECKSUMS[name]
    method = "checksums" if has_checksums else "sizes; the format has no checksums"
    assert found.method == f"{read_foreign(path).recognition.format.value}: {method}"
    bits = make_tensors()["0.weight"].numpy().tobytes()
    (file,) = (
        each for each in ([path] if path.is_file() else path.iterdir()) if bits in each.read_bytes()
    )
    content = file.read_bytes()
    file.write_bytes(content.replace(bits, bits[:-4] + bytes([bits[-4] ^ 1]) + bits[-3:]))
    assert bool(check_integrity(path)[0].findings) == has_checksums


def test_a_part_of_a_file_is_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    with open_part(tmp_path / "a", 10, 20) as part:
        assert part.read() == bytes(range(10, 30))
        assert part.seek(-5, io.SEEK_END) == 15
        assert part.read(3) == bytes(range(25, 28))
        assert part.seek(2) == 2
        assert part.seek(3, io.SEEK_CUR) == 5
        assert part.read(1) == bytes([15])
        with pytest.raises(ValueError, match="the position -1 is negative"):
            part.seek(-21, io.SEEK_END)
        part.seek(50)
        assert part.read() == b""


def test_names_of_python_2_are_those_of_python_3() -> None:
    for protocol in (2, 4):
        scan = scan_pickle(io.BytesIO(pickle.dumps(range(3), protocol)), "a")
        assert scan.names == {"builtins.range"}


def test_of_many_refused_names_twenty_are_shown(tmp_path: Path) -> None:
    names = [f"m.c{number:02d}" for number in range(23)]
    content = b"".join(f"cm\nc{number:02d}\n0".encode() for number in range(23))
    (tmp_path / "a.pkl").write_bytes(b"\x80\x02" + content + b"N.")
    with pytest.raises(UnsafeFileError, match=rf"It imports {', '.join(names[:20])}\. Nothing w"):
        read_foreign(tmp_path / "a.pkl")
    torch.save({"w": NEW}, tmp_path / "a.pt")
    replace_record(tmp_path / "a.pt", "/data.pkl", lambda _: b"\x80\x02" + content + b"N.")
    with pytest.raises(UnsafeFileError, match=f"imports {', '.join(names[:20])} and 3 more, and a"):
        read_foreign(tmp_path / "a.pt")
