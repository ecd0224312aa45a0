"""Writes to old files by functions that were taken from the library before torch."""
# ruff: noqa: PTH105, SIM115, E402

import bz2
import importlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Callable
from os import remove, replace
from os import truncate as cut
from pathlib import Path

import numpy as np

opened = open

import torch  # isort: skip - the order is the point

folder = Path(sys.argv[1])
came_to = {}


def attempt(name: str, write: Callable[[str], object]) -> None:
    try:
        write(str(folder / name))
    except OSError as error:
        came_to[name] = type(error).__name__
        if name == "opened":
            came_to["message"] = str(error)
    else:
        came_to[name] = "saved"


def put_in_place(path: str) -> None:
    (folder / "new").write_text("new\n")
    replace(folder / "new", path)


def truncate(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))


def write_by_link(path: str) -> None:
    (folder / "link").symlink_to(path)
    opened(folder / "link", "w")


def move_and_remove_elsewhere(path: str) -> None:
    """Use names of old files for new ones of another folder."""
    place = folder / "place"
    place.mkdir()
    (place / "elsewhere").write_text("new")
    number = os.open(place, os.O_RDONLY)
    replace("elsewhere", "opened", src_dir_fd=number, dst_dir_fd=number)
    remove("opened", dir_fd=number)
    place.rmdir()


assert torch.cuda.is_available()
os.chdir(folder)
attempt("opened", lambda path: opened(path, "w"))
attempt("replaced", put_in_place)
attempt("removed", remove)
attempt("text", lambda path: np.savetxt(path, np.zeros(3)))
attempt("bz2", lambda path: bz2.open(path, "w"))
attempt("tar", lambda path: tarfile.open(path, "w"))
attempt("raw", lambda path: io.FileIO(path, "w"))
with_place = os.open(".", os.O_RDONLY)
attempt("descriptor", lambda path: os.open(Path(path).name, os.O_WRONLY, dir_fd=with_place))
attempt("unmade", truncate)
attempt("updated", lambda path: opened(path, "r+"))
attempt("appended", lambda path: opened(path, "a"))
attempt("bytes", lambda path: opened(os.fsencode(path), "w"))
attempt("linked", write_by_link)
attempt("cut", lambda path: cut(path, 0))
attempt("made", lambda path: opened(path, "x"))
attempt("elsewhere", move_and_remove_elsewhere)
assert opened(folder / "updated").read() == "old\n"
sys.path.insert(0, str(folder))
sys.dont_write_bytecode = False
importlib.import_module("compiled")
print(json.dumps(came_to))
