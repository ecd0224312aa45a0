"""Saves a tensor in every way over files that are there and to new names, and reads each again.

Prints a line of JSON: what each way came to, ``saved`` or the name of the error.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed.checkpoint as dcp

warnings.simplefilter("ignore")  # PyTorch warns of some ways
FOLDER = Path(sys.argv[1])
SIZE = 1000
values = torch.rand(SIZE, device="cuda") * 0 + 2  # unknown without data
state = {"weight": values}


def open_and_save(path: Path) -> None:
    with path.open("wb") as file:
        torch.save(state, file)


def save_aside(path: Path) -> None:
    aside = path.with_suffix(".tmp")
    torch.save(state, aside)
    os.replace(aside, path)  # noqa: PTH105


def save_in_temporary_file(path: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            torch.save(state, file)
        except BaseException:
            Path(file.name).unlink()
            raise
    Path(file.name).rename(path)


def open_and_pickle(path: Path) -> None:
    with open(path, "wb") as file:  # noqa: PTH123
        pickle.dump(state, file)


def save_and_copy(path: Path) -> None:
    torch.save(state, path.with_suffix(".last"))
    shutil.copy(path.with_suffix(".last"), path)


def save_safely(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": values}, path)


def load_safely(path: Path) -> Any:
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(path, framework="pt") as file:
        assert list(file.keys()) == ["weight"]
    return load_file(path)["weight"]


def save_arrays_safely(path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"weight": values.cpu().numpy()}, path)


def load_arrays_safely(path: Path) -> Any:
    from safetensors.numpy import load_file

    return load_file(path)["weight"]


def save_script(path: Path) -> None:
    torch.jit.script(torch.nn.Linear(SIZE, SIZE, device="cuda")).save(path)


def load_script(path: Path) -> Any:
    return torch.jit.load(path)(values)


def write_raw(path: Path) -> None:
    values.cpu().numpy().tofile(path)


def load(path: Path) -> Any:
    return torch.load(path, map_location="cpu")["weight"]


def unpickle(path: Path) -> Any:
    with path.open("rb") as file:
        return pickle.load(file)["weight"]


def save_arrays(path: Path) -> None:
    numpy.savez(path, weight=values.cpu())


def load_distributed(path: Path) -> Any:
    loaded = {"weight": torch.zeros(SIZE)}
    dcp.load(loaded, checkpoint_id=path, no_dist=True)
    return loaded["weight"]


def save_arrays_packed(path: Path) -> None:
    numpy.savez_compressed(path.with_suffix(""), weight=values.cpu())  # adds the suffix


def save_script_by_function(path: Path) -> None:
    torch.jit.save(m=torch.jit.script(torch.nn.Linear(SIZE, SIZE, device="cuda")), f=path)


def open_and_save_script(path: Path) -> None:
    with path.open("wb") as file:
        torch.jit.save(torch.jit.script(torch.nn.Linear(SIZE, SIZE, device="cuda")), file)


def open_and_pickle_array(path: Path) -> None:
    arrays = {"weight": values.cpu().numpy()}
    with path.open("wb") as file:
        pickle.dump(arrays, file)


WAYS: dict[str, tuple[Callable[[Path], object], Callable[[Path], Any]]] = {
    "save.pt": (lambda path: torch.save(state, path), load),
    "text.pt": (lambda path: torch.save(state, str(path)), load),
    "mapped.pt": (
        lambda path: torch.save(state, path),
        lambda p: torch.load(p, mmap=True)["weight"],
    ),
    "legacy.pt": (
        lambda path: torch.save(state, path, _use_new_zipfile_serialization=False),
        load,
    ),
    "open.pt": (open_and_save, load),
    "aside.pt": (save_aside, load),
    "temporary.pt": (save_in_temporary_file, load),
    "copied.pt": (save_and_copy, load),
    "pickled.pkl": (open_and_pickle, unpickle),
    "pickled.array": (open_and_pickle_array, unpickle),
    "array.npy": (lambda path: numpy.save(path, values.cpu()), numpy.load),
    "arrays.npz": (save_arrays, lambda path: numpy.load(path)["weight"]),
    "packed.npz": (save_arrays_packed, lambda path: numpy.load(path)["weight"]),
    "named.pt": (
        lambda path: torch.save(obj=state, f=path),
        lambda path: torch.load(f=path)["weight"],
    ),
    "scripted.pt": (save_script, load_script),
    "function.pt": (save_script_by_function, lambda path: torch.jit.load(f=path)(values)),
    "handed.pt": (open_and_save_script, load_script),
    "distributed": (
        lambda path: dcp.save(state, checkpoint_id=path, no_dist=True),
        load_distributed,
    ),
}
if importlib.util.find_spec("safetensors"):
    WAYS["safe.safetensors"] = save_safely, load_safely
    WAYS["flat.safetensors"] = save_arrays_safely, load_arrays_safely
OVER_FILES_ONLY = {"raw.bin": (write_raw, lambda path: numpy.fromfile(path, numpy.float32))}


def attempt(path: Path, save: Callable[[Path], object], read: Callable[[Path], Any]) -> str:
    try:
        save(path)
    except BaseException as error:  # as that of distributed checkpoints is
        return type(error).__name__
    assert path.exists(), path
    assert os.listdir(path.parent).count(path.name) == 1, path  # noqa: PTH208
    assert path in set(path.parent.glob("*")), path
    assert len(read(path)) == SIZE, path
    return "saved"


print(
    json.dumps(
        {
            f"{place}/{name}": attempt(FOLDER / place / name, save, read)
            for place, ways in (("old", WAYS | OVER_FILES_ONLY), ("new", WAYS))
            for name, (save, read) in ways.items()
        }
    )
)
