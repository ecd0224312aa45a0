"""A `Snapshot` as the files of a checkpoint.

::

    model.safetensors              parameters and buffers, by name; <keyword>.… of other modules
    optimizer.safetensors          tensors such as "fc.weight.exp_avg"; optimizer.<key>.… of several
    values.pt                      everything else, from rank 0; read with weights_only=True

`tensor_file_names.py` shows the other names of the first two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    values = decode_values(path)
    try:
        return Snapshot(
            modules={
                name: ModuleState(read_tensors(folder, name, names), content)
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
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamagedError(
            f"{path} does not have the values of a checkpoint: {error!r}", path
        ) from None


def _read_optimizer(
    folder: Path, key: str, files: list[str], content: Mapping[str, Any]
) -> OptimizerState:
    flat = read_tensors(folder, stem_of_optimizer(key), files)
    tensors = {
        name: {part: flat[f"{name}.{part}"] for part in parts}
        for name, parts in content["tensors"].items()
    }
    return OptimizerState(tensors, content["values"], content["groups"])


def _flat_tensors(state: OptimizerState) -> dict[str, SavedTensor]:
    return {
        f"{name}.{part}": tensor
        for name, parts in state.tensors.items()
        for part, tensor in parts.items()
    }


def stem_of_optimizer(key: str) -> str:
    """Return the beginning of the names of an optimizer's files."""
    return f"optimizer.{key}" if key else "optimizer"
