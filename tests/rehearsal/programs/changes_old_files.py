"""Changes files and folders that were there, and checks that it sees its own changes."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import torch

FOLDER = Path(sys.argv[1])
READ = "import torch, sys; print(torch.load(sys.argv[1])['step'])"


def save_in_a_child(path: str) -> None:
    torch.save({"step": 7}, path)


def main() -> None:
    (FOLDER / "new.json").write_text("{}")  # what is no tensor and new is the script's own
    (FOLDER / "new.json").write_text('{"bytes": 1}')

    logging.basicConfig(filename=FOLDER / "log.txt", level=logging.INFO)
    logging.info("step 1")
    assert (FOLDER / "log.txt").read_text() == "old\nINFO:root:step 1\n"

    with open(FOLDER / "table.bin", "r+b") as file:  # noqa: PTH123
        file.seek(2)
        file.write(b"!")
    assert (FOLDER / "table.bin").read_bytes() == b"ol!\n"
    (FOLDER / "cut.bin").chmod(0o600)  # changes its ctime; it is still from before
    os.truncate(FOLDER / "cut.bin", 1)
    assert (FOLDER / "cut.bin").stat().st_size == 1

    (FOLDER / "removed.pt").unlink()
    assert not (FOLDER / "removed.pt").exists()
    assert "removed.pt" not in os.listdir(FOLDER)  # noqa: PTH208
    (FOLDER / "touched.pt").touch()
    (FOLDER / "touched.pt").chmod(0o600)
    torch.save({"step": 3}, FOLDER / "touched.pt")
    with suppress(AttributeError, pickle.PicklingError):
        torch.save({"step": lambda: 4}, FOLDER / "touched.pt")
        raise AssertionError
    # Broken, as without a rehearsal; never again what it was before.
    assert (FOLDER / "touched.pt").read_bytes() != b"old\n"

    with (FOLDER / "both.pkl").open("wb") as file:
        pickle.dump("first", file)
        pickle.dump(torch.ones(2), file)  # from here on in the scratch folder
    with (FOLDER / "both.pkl").open("rb") as file:
        assert pickle.load(file) == "first"
        assert len(pickle.load(file)) == 2

    # Keep the newest checkpoints, and a link to the last one.
    torch.save({"step": 2}, FOLDER / "moved.pt")
    (FOLDER / "old.pt").rename(FOLDER / "backup.pt")
    assert (FOLDER / "backup.pt").read_text() == "old\n"
    assert not (FOLDER / "old.pt").exists()
    (FOLDER / "last.pt").unlink()
    (FOLDER / "last.pt").symlink_to("moved.pt")
    assert torch.load(FOLDER / "last.pt")["step"] == 2
    shutil.rmtree(FOLDER / "run-1")
    assert not (FOLDER / "run-1").exists()
    (FOLDER / "run-1").mkdir()
    assert os.listdir(FOLDER / "run-1") == []  # noqa: PTH208
    staged = FOLDER / "run-2.staged"
    staged.mkdir()
    torch.save({"step": 5}, staged / "model.pt")
    staged.rename(FOLDER / "run-2")
    assert torch.load(FOLDER / "run-2" / "model.pt")["step"] == 5
    assert not (staged / "model.pt").exists()
    shutil.rmtree(FOLDER / "run-2")
    assert not (FOLDER / "run-2").exists()

    (FOLDER / "run-0").rename(FOLDER / "kept")
    assert (FOLDER / "kept" / "deep" / "model.pt").read_text() == "old\n"
    assert not (FOLDER / "run-0").exists()
    assert (FOLDER / "last.pt").is_symlink()
    with (FOLDER / "empty.pt").open("wb") as file:
        torch.save({"step": 6}, file)
    assert torch.load(FOLDER / "empty.pt")["step"] == 6

    child = multiprocessing.get_context("spawn").Process(
        target=save_in_a_child, args=(str(FOLDER / "child.pt"),)
    )
    child.start()
    child.join()
    read = subprocess.run(
        [sys.executable, "-c", READ, FOLDER / "child.pt"], capture_output=True, text=True
    )
    assert read.stdout == "7\n", read.stderr
    try:
        torch.save({}, FOLDER / "absent" / "model.pt")
    except RuntimeError as error:
        assert "does not exist" in str(error)  # noqa: PT017


if __name__ == "__main__":
    main()
    print("done")
