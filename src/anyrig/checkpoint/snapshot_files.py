"""A `Snapshot` as the files of a checkpoint.

::

    model.safetensors              parameters and buffers, by name; <keyword>.… of other modules
    optimizer.safetensors          tensors such as "fc.weight.exp_avg"; optimizer.<key>.… of several
    values.pt                      everything else, read with weights_only=True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointDamagedError
from .commit import Parts
from .safetensors_file import contents_of, read_tensors
from .snapshot import ModuleState, OptimizerState, Snapshot
from .values_file import decode_values, encode_values

VALUES_NAME = "values.pt"


def contents_of_snapshot(
    snapshot: Snapshot, to_host: Callable[[Tensor], Tensor]
) -> dict[str, Parts]:
    """Return the files of a snapshot: their names, and their contents in parts.

    Read the contents in order: `to_host` returns whole tensors, and may be a collective.

    Raises:
        CheckpointError: a value would need code to be read.
    """
    contents: dict[str, Parts] = {}
    for name, module in snapshot.modules.items():
        contents |= contents_of(name, module.tensors, to_host)
    for key, state in snapshot.optimizers.items():
        contents |= contents_of(_stem(key), _flat_tensors(state), to_host)
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
    return contents | {VALUES_NAME: [encode_values(values)]}


def read_snapshot(folder: Path) -> Snapshot:
    """Return the snapshot in a checkpoint's folder; tensors are mapped from its files.

    Raises:
        CheckpointDamagedError: a file is missing, cut off or altered.
        UnsafeFileError: a file would run code.
    """
    path = folder / VALUES_NAME
    values = decode_values(path)
    try:
        return Snapshot(
            modules={
                name: ModuleState(read_tensors(folder, name), content)
                for name, content in values["modules"].items()
            },
            optimizers={
                key: _read_optimizer(folder, key, content)
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


def _read_optimizer(folder: Path, key: str, content: Mapping[str, Any]) -> OptimizerState:
    flat = read_tensors(folder, _stem(key))
    tensors = {
        name: {part: flat[f"{name}.{part}"] for part in parts}
        for name, parts in content["tensors"].items()
    }
    return OptimizerState(tensors, content["values"], content["groups"])


def _flat_tensors(state: OptimizerState) -> dict[str, Tensor]:
    return {
        f"{name}.{part}": tensor
        for name, parts in state.tensors.items()
        for part, tensor in parts.items()
    }


def _stem(key: str) -> str:
    return f"optimizer.{key}" if key else "optimizer"
