"""A `Snapshot` as the files of a checkpoint.

::

    model.safetensors              parameters and buffers, by name; <keyword>.… of other modules
    optimizer.safetensors          tensors such as "fc.weight.exp_avg"; optimizer.<key>.… of several
    values.pt                      everything else, from rank 0; read with weights_only=True

`tensor_file_names.py` shows the other names of the first two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointDamagedError
from .commit import Parts
from .manifest import read_manifest
from .saved_tensors import read_tensors
from .snapshot import ModuleState, OptimizerState, Snapshot
from .tensor_files import Writing, contents_of
from .tensor_in_parts import SavedTensor
from .values_file import decode_values, encode_values
from .values_form import check_values

VALUES_NAME = "values.pt"


def contents_of_snapshot(snapshot: Snapshot, writing: Writing) -> dict[str, Parts]:
    """Return the files of a snapshot: their names, and their contents in parts.

    Read the contents in order: `writing.to_host` may be a collective.

    Raises:
        CheckpointError: reading a value would run code.
    """
    contents: dict[str, Parts] = {}
    for stem, tensors in captured_tensors(snapshot).items():
        contents |= contents_of(stem, tensors, writing)
    values = {
        "modules": {name: dict(module.values) for name, module in snapshot.modules.items()},
        "optimizers": {
            key: {
                "tensors": {name: list(parts) for name, parts in state.tensors.items()},
                "values": {name: dict(parts) for name, parts in state.values.items()},
                "groups": [dict(group) for group in state.groups],
                "class": state.kind,
                "dtypes": dict(state.dtypes),
                "in_shards": {name: list(parts) for name, parts in state.in_shards.items()},
            }
            for key, state in snapshot.optimizers.items()
        },
        "states": dict(snapshot.states),
        "random": [dict(each) for each in snapshot.random],
        "given": dict(snapshot.given),
    }
    encoded = encode_values(values)  # on every rank: each raises if it cannot be saved
    return contents | ({VALUES_NAME: [encoded]} if writing.rank == 0 else {})


def captured_tensors(snapshot: Snapshot) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a captured snapshot, by name, for each stem of the files' names."""
    named = {name: module.tensors for name, module in snapshot.modules.items()}
    named |= {
        stem_of_optimizer(key): _flat_tensors(state) for key, state in snapshot.optimizers.items()
    }
    return {
        stem: {name: each for name, each in tensors.items() if isinstance(each, Tensor)}
        for stem, tensors in named.items()
    }


# The type and the shape of each tensor, and the names of values, for each part of a snapshot.
Outline = dict[str, dict[str, object]]


def outline_of(snapshot: Snapshot) -> Outline:
    """Return what a snapshot holds: the same for a captured one and for the one that is read."""
    tensors: dict[str, Mapping[str, SavedTensor]] = {
        name: module.tensors for name, module in snapshot.modules.items()
    }
    tensors |= {stem_of_optimizer(key): _flat_tensors(s) for key, s in snapshot.optimizers.items()}
    found: Outline = {
        stem: {name: (each.dtype, tuple(each.shape)) for name, each in its.items()}
        for stem, its in tensors.items()
    }
    for name, module in snapshot.modules.items():
        found[name] |= dict.fromkeys(module.values, "a value")
    found["the objects"] = dict.fromkeys(snapshot.states, "a state")
    found["the values"] = dict.fromkeys(snapshot.given, "a value")
    return found


def read_snapshot(folder: Path, files: Iterable[str] | None = None) -> Snapshot:
    """Return the snapshot in a checkpoint's folder; tensors are mapped from its files.

    Args:
        folder: the folder of the checkpoint.
        files: the names of its files; None for those in its manifest.

    Raises:
        CheckpointDamagedError: a file is missing, cut off or altered.
        UnsafeFileError: a file would run code.
    """
    path = folder / VALUES_NAME
    names = [*(read_manifest(folder).files if files is None else files)]
    values = _read_values(folder)
    try:
        return Snapshot(
            modules={
                name: _read_module(folder, name, names, content)
                for name, content in values["modules"].items()
            },
            optimizers={
                key: _read_optimizer(folder, key, names, content)
                for key, content in values["optimizers"].items()
            },
            states=values["states"],
            random=values["random"],
            given=values["given"],
        )
    except ValueError as error:
        raise _no_values(path, error) from None


def read_role(folder: Path, role: str, files: Iterable[str]) -> dict[str, SavedTensor]:
    """Return the tensors of a module or an optimizer, also those that safetensors cannot hold.

    Args:
        folder: the folder of the checkpoint.
        role: what the tensors are, such as ``"model"``; see `role_of`.
        files: the names of all files of the checkpoint.

    Raises:
        CheckpointDamagedError: a file is missing, cut off or altered.
    """
    found = read_tensors(folder, role, files)
    for stem, name, each in read_tensor_values(folder):
        if stem == role:
            found.setdefault(name, each)
    return found


def read_tensor_values(folder: Path) -> Iterator[tuple[str, str, Tensor]]:
    """Yield (role, name, tensor) of the tensors that safetensors cannot hold.

    Raises:
        CheckpointDamagedError: the file of values is missing, cut off or altered.
    """
    values = _read_values(folder)
    for role, content in values["modules"].items():
        for name, value in content.items():
            if isinstance(value, Tensor):
                yield role, name, value
    for key, content in values["optimizers"].items():
        for name, parts in content["values"].items():
            for part, value in parts.items():
                if isinstance(value, Tensor):
                    yield stem_of_optimizer(key), f"{name}.{part}", value


def _read_values(folder: Path) -> dict[str, Any]:
    path = folder / VALUES_NAME
    values = decode_values(path)
    try:
        check_values(values)
    except ValueError as error:
        raise _no_values(path, error) from None
    return values


def _no_values(path: Path, error: ValueError) -> CheckpointDamagedError:
    return CheckpointDamagedError(
        f"{path} does not have the values of a checkpoint: {error}. Load another checkpoint of "
        "the series",
        path,
    )


def _read_module(
    folder: Path, name: str, files: list[str], content: Mapping[str, Any]
) -> ModuleState:
    tensors = read_tensors(folder, name, files)
    if both := sorted(tensors.keys() & content.keys()):
        raise ValueError(f"modules[{name!r}] has a value {both[0]!r}, which is a tensor, too")
    return ModuleState(tensors, content)


def _read_optimizer(
    folder: Path, key: str, files: list[str], content: Mapping[str, Any]
) -> OptimizerState:
    flat = read_tensors(folder, stem_of_optimizer(key), files)
    places = {
        f"{name}.{part}": (name, part)
        for name, parts in content["tensors"].items()
        for part in parts
    }
    if differing := sorted(flat.keys() ^ places.keys()):
        where = "the optimizer's file has" if differing[0] in flat else "its values name"
        raise ValueError(f"only {where} a tensor {differing[0]!r}")
    tensors: dict[str, dict[str, SavedTensor]] = {name: {} for name in content["tensors"]}
    for full, (name, part) in places.items():
        tensors[name][part] = flat[full]
    return OptimizerState(
        tensors,
        content["values"],
        content["groups"],
        content.get("class", ""),
        content.get("dtypes", {}),
        content.get("in_shards", {}),
    )


def _flat_tensors(state: OptimizerState) -> dict[str, SavedTensor]:
    return {
        f"{name}.{part}": tensor
        for name, parts in state.tensors.items()
        for part, tensor in parts.items()
    }


def stem_of_optimizer(key: str) -> str:
    """Return the beginning of the names of an optimizer's files."""
    return f"optimizer.{key}" if key else "optimizer"
