"""Find and read the model of a Hugging Face folder: one file, or shards with an index.

::

    model.safetensors                       or  pytorch_model.bin
    model-00001-of-00002.safetensors        or  pytorch_model-00001-of-00002.bin
    model.safetensors.index.json            or  pytorch_model.bin.index.json
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ...errors import CheckpointDamagedError, CheckpointError
from .contents import divide_contents
from .inside import find_inside
from .safetensors_file import read_safetensors
from .shard_index import read_index, read_shards
from .torch_file import read_torch_file

_SINGLE = ("model.safetensors", "pytorch_model.bin", "model.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# Files with the suffix of a model that are not models.
_NO_MODEL = ("optimizer.bin", "scheduler.bin", "sampler.bin", "training_args.bin")


@dataclass(frozen=True)
class ModelFile:
    """The file of a folder that leads to the model.

    Attributes:
        path: the only file, or the index of several.
        is_index: whether `path` is an index.
        is_safetensors: whether the tensors are in safetensors files, not in torch files.
        reason: why this file was chosen.
    """

    path: Path
    is_index: bool
    is_safetensors: bool
    reason: str


def find_model_file(folder: Path) -> ModelFile | None:
    """Return the file that leads to the model of a folder, or None.

    safetensors files are preferred to torch files, and an index to a single file.

    Raises:
        CheckpointError: several files could be the model.
    """
    names = sorted(path.name for path in folder.iterdir())
    for kind in (".safetensors", ".bin"):
        is_safetensors = kind == ".safetensors"
        indexes = [name for name in names if name.endswith(f"{kind}.index.json")]
        files = [name for name in names if name.endswith(kind) and name not in _NO_MODEL]
        # A file with a usual name is the model, whatever other files there are.
        if usual := [name for name in _INDEXES if name in indexes]:
            return ModelFile(
                folder / usual[0], True, is_safetensors, f"it has the index {usual[0]}"
            )
        if usual := [name for name in _SINGLE if name in files]:
            return ModelFile(folder / usual[0], False, is_safetensors, f"it has {usual[0]}")
        if indexes:
            _check_single(folder, indexes)
            reason = f"it has the index {indexes[0]}"
            return ModelFile(folder / indexes[0], True, is_safetensors, reason)
        if files:
            _check_single(folder, files)
            reason = f"{files[0]} is its only {kind} file"
            return ModelFile(folder / files[0], False, is_safetensors, reason)
    return None


def read_model_file(model: ModelFile) -> dict[str, Tensor]:
    """Return the tensors of the model that a file leads to.

    Raises:
        UnsafeFileError: a file would run code, or leads out of the folder.
        CheckpointDamagedError: a file is truncated, altered or missing.
    """
    if model.is_index:
        index = read_index(model.path)
        return read_shards(index, _read_safetensors if model.is_safetensors else _read_torch)
    path = find_inside(model.path.parent, model.path.name, named_by=str(model.path.parent))
    return _read_safetensors(path) if model.is_safetensors else _read_torch(path)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    return read_safetensors(path, follow_links=True)[0]


def _read_torch(path: Path) -> dict[str, Tensor]:
    contents = divide_contents(read_torch_file(path), str(path))
    if contents.extra:
        raise CheckpointDamagedError(
            f"{path} holds {', '.join(sorted(contents.extra)[:5])} in addition to tensors, so it "
            "is not a shard of a model. Give this file itself to read all of it"
        )
    return contents.tensors


def _check_single(folder: Path, names: list[str]) -> None:
    if len(names) > 1:
        raise CheckpointError(
            f"{folder} has {len(names)} files that could be the model: {', '.join(names[:8])}. "
            "Give the file that you want"
        )
