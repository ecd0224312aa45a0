"""A shape-only rehearsal changes no file that was there, and leaves nothing like a checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import anyrig
from forked_programs import run_anyrig

PROGRAMS = Path(__file__).parent / "programs"
NAMES = [
    *("save.pt", "text.pt", "mapped.pt", "legacy.pt", "open.pt", "aside.pt", "temporary.pt"),
    *("copied.pt", "pickled.pkl", "array.npy", "arrays.npz", "safe.safetensors", "raw.bin"),
    *("scripted.pt", "function.pt", "named.pt", "packed.npz", "handed.pt", "pickled.array"),
    "flat.safetensors",
    *("distributed/.metadata", "distributed/__0_0.distcp"),
]
OTHERS = [
    *("log.txt", "table.bin", "cut.bin", "removed.pt", "touched.pt", "moved.pt", "old.pt"),
    *("numbered/a.txt", "numbered/b.txt", "numbered/c.txt"),
    *("more/a.txt", "more/b.txt", "more/c.txt", "more/d.txt", "more/sub/e.txt"),
    *("child.pt", "run-1/model.pt", "run-1/deep/model.pt", "run-0/deep/model.pt"),
]


def rehearse(
    folder: Path, *arguments: str, fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    """Rehearse a program, which finds torch imported unless it is `fresh`."""
    temporary = folder.with_name("temporary")
    temporary.mkdir(exist_ok=True)
    words = ("rehearse", "--rig", "2xT4", *arguments, str(folder))
    if not fresh:
        return run_anyrig(*words, TMPDIR=str(temporary))
    return subprocess.run(
        [sys.executable, "-m", "anyrig", *words],
        env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with old files, and one for new ones."""
    place = tmp_path / "files"
    for name in NAMES:
        (place / "old" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "old" / name).write_text("old\n")
    (place / "new").mkdir()
    return place


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_bytes().decode(errors="replace")
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_assumed_values_are_saved_to_the_scratch_folder_and_read_from_there(folder: Path) -> None:
    before = contents(folder)
    program = str(PROGRAMS / "saves_tensors.py")
    reports = {
        f"--{kind}": folder.parent / f"report.{kind}" for kind in ("json", "trace", "report")
    }
    for report in reports.values():
        report.write_text("of an earlier rehearsal")
    flags = [str(word) for item in reports.items() for word in item]
    done = rehearse(folder, "--shape-only", "--assume-values", "--quiet", *flags, program)
    assert done.returncode == 0, done.stderr
    for report in reports.values():
        assert report.stat().st_size > len("of an earlier rehearsal")
    assert set(json.loads(done.stdout).values()) == {"saved"}
    assert contents(folder) == before
    place = next((folder.parent / "temporary").glob("anyrig-scratch-*")) / "files"
    assert f"does not change {folder}/old/save.pt, because it has no v" in done.stderr
    assert f"does not create {folder}/new/save.pt, because it has no values to save" in done.stderr
    assert f"to that folder are in {place}{folder}/old\n" in done.stderr
    assert done.stderr.count("anyrig: ") == 4  # one a folder


def test_a_value_that_is_missing_leaves_files_as_they_were(folder: Path) -> None:
    before = contents(folder)
    done = rehearse(folder, "--shape-only", str(PROGRAMS / "saves_tensors.py"))
    assert done.returncode == 0, done.stderr
    came_to = set(json.loads(done.stdout).values())
    assert came_to <= {"ValueNeededError", "CheckpointException"}
    assert "ValueNeededError" in came_to
    assert contents(folder) == before


def test_what_else_a_script_does_to_old_files(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    for name in OTHERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("old\n")
    (folder / "last.pt").symlink_to("old.pt")
    (folder / "more" / "linked").symlink_to("d.txt")
    (folder / "empty.pt").touch()
    (folder / "blank.txt").touch()
    before = contents(folder)
    program = str(PROGRAMS / "changes_old_files.py")
    done = rehearse(folder, "--shape-only", "--assume-values", program)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert contents(folder) == {
        **before,
        "new.json": '{"bytes": 1}',
        "unpacked.json": "[1]",
        "blank.txt": "mine",
    }
    assert (folder / "run-1" / "deep").is_dir()
    assert (folder / "last.pt").readlink() == Path("old.pt")


def test_checkpoints_from_before_the_rehearsal_stay(tmp_path: Path) -> None:
    for step in (1, 2):
        anyrig.save(tmp_path / "runs", model=torch.nn.Linear(2, 2), step=step)
    before = contents(tmp_path / "runs")
    program = tmp_path / "save.py"
    program.write_text(
        "import sys, torch, anyrig\n"
        "anyrig.save(sys.argv[1], model=torch.nn.Linear(2, 2), step=3, keep=1)\n"
        "print(anyrig.load(sys.argv[1], model=torch.nn.Linear(2, 2)).step)\n"
    )
    folder = tmp_path / "runs"
    words = ("rehearse", "--rig", "2xT4", "--shape-only", "--assume-values", str(program))
    done = run_anyrig(*words, str(folder), TMPDIR=str(tmp_path))
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["3"]), done.stderr
    found = contents(folder)
    assert {name: found.get(name) for name in before} == before


def test_what_cannot_be_redirected_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    names = ["opened", "replaced", "removed", "text", "bz2", "tar", "raw", "descriptor", "unmade"]
    names += ["updated", "appended", "bytes", "linked", "cut", "made", "elsewhere"]
    for name in names:
        (folder / name).write_text("old\n")
    (folder / "compiled.py").touch()
    compiled = folder / "__pycache__" / f"compiled.{sys.implementation.cache_tag}.pyc"
    compiled.parent.mkdir()
    compiled.write_text("old\n")
    program = str(PROGRAMS / "writes_past_redirection.py")
    done = rehearse(folder, "--shape-only", program, fresh=True)
    assert done.returncode == 0, done.stderr
    came_to = json.loads(done.stdout)
    assert came_to.pop("unmade") == "saved"  # redirected
    assert came_to.pop("descriptor") == "saved"  # redirected
    assert came_to.pop("elsewhere") == "saved"  # is a new file of another folder
    assert came_to.pop("made") == "FileExistsError"
    assert came_to.pop("message") == (
        "[Errno 1] a shape-only rehearsal has no values to save and does not change this file, and "
        "it cannot redirect this call to a copy: the function was imported by name before torch "
        "was imported. Call the function through its module, as in os.replace, import torch "
        f"first, or save to a new file: '{folder}/opened'"
    )
    others = {*names} - {"unmade", "descriptor", "elsewhere", "made"}
    assert came_to == dict.fromkeys(others, "PermissionError")
    assert compiled.read_bytes() != b"old\n"  # Python replaces what it has compiled
    assert {name: (folder / name).read_text() for name in names} == dict.fromkeys(names, "old\n")
    assert (folder / "new").read_text() == "new\n"


def test_ranks_share_the_scratch_folder(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "model.pt").write_text("old\n")
    script = tmp_path / "train.py"
    script.write_text("""
import os, sys, torch, torch.distributed as dist
from pathlib import Path
path = Path(sys.argv[1]) / "model.pt"
dist.init_process_group()
if dist.get_rank() == 0:
    torch.save({"step": 4}, path)
dist.barrier()
print(torch.load(path)["step"])
dist.destroy_process_group()
""")
    flags = ["--shape-only", "--assume-values", "--nproc-per-device", "1"]
    done = rehearse(folder, *flags, str(script))
    assert sorted(done.stdout.splitlines()) == ["[rank 0] 4", "[rank 1] 4"], done.stderr
    assert contents(folder) == {"model.pt": "old\n"}
    assert done.stderr.count("does not change") == 1


def test_a_rehearsal_that_computes_saves_where_the_script_says(folder: Path) -> None:
    done = rehearse(folder, str(PROGRAMS / "saves_tensors.py"))
    assert set(json.loads(done.stdout).values()) == {"saved"}, done.stderr
    after = contents(folder)
    assert "old\n" not in {after[f"old/{name}"] for name in NAMES if "safe" not in name}
    assert {f"new/{name}" for name in NAMES if "raw" not in name and "safe" not in name} < set(
        after
    )
    assert list((folder.parent / "temporary").glob("anyrig-scratch-*")) == []
