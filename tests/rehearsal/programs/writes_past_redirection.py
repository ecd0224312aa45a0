"""Writes to old files by functions that were taken from the library before torch."""
# ruff: noqa: PTH105, SIM115, E402

import bz2
import io
import json
import os
import sys
import tarfile
from collections.abc import Callable
from os import remove, replace
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
    else:
        came_to[name] = "saved"


def put_in_place(path: str) -> None:
    (folder / "new").write_text("new\n")
    replace(folder / "new", path)


def truncate(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))


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
print(json.dumps(came_to))
