"""Find and read the model of a Hugging Face folder: one file, or shards with an index.

::

    model.safetensors                       or  pytorch_model.bin
    model-00001-of-00002.safetensors        or  pytorch_model-00001-of-00002.bin
    model.safetensors.index.json            or  pytorch_model.bin.index.json

A folder may have several of these, if a later save left files of an earlier one. The first one is
read, in this order, which is transformers': model.safetensors, its index, pytorch_model.bin, its
index. What is not read is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ...errors import CheckpointDamagedError, CheckpointError
from ..safetensors_header import read_header
from .contents import divide_contents
from .inside import find_inside
from .numbered_files import find_numbered
from .safetensors_file import read_safetensors
from .shard_index import ShardIndex, read_index, read_shards
from .torch_file import read_torch_file

_SINGLE = ("model.safetensors", "pytorch_model.bin", "model.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# Files with the suffix of a model that are not models.
_NO_MODEL = ("optimizer.bin", "scheduler.bin", "sampler.bin", "training_args.bin")


@dataclass(frozen=True)
class ModelFile:
    """The file of a folder that leads to the model.

    Attributes:
        path: the only file, the index of several, or the folder of numbered files without an index.
        is_index: whether the model is in several files.
        is_safetensors: whether the tensors are in safetensors files, not in torch files.
        reason: why this file was chosen.
        numbered: the names of numbered files without an index.
    """

    path: Path
    is_index: bool
    is_safetensors: bool
    reason: str
    numbered: tuple[str, ...] = ()

    def read_index(self) -> ShardIndex:
        """Return which file holds each tensor of a model in several files.

        Raises:
            UnsafeFileError: a file would run code, or leads out of the folder.
            CheckpointDamagedError: the index or a file is altered or missing.
        """
        if not self.numbered:
            folder = self.path.parent
            return read_index(find_inside(folder, self.path.name, named_by=str(folder)))
        named: dict[Path, tuple[str, ...]] = {}
        file_of: dict[str, str] = {}
        for file_name in self.numbered:
            path = find_inside(self.path, file_name, named_by=str(self.path))
            names = _names_in(path) if self.is_safetensors else [*_read_torch(path)]
            for name in names:
                if name in file_of:
                    raise CheckpointDamagedError(
                        f"{path} and {file_of[name]} both hold {name!r}, so they are not shards of "
                        "one model. Give the file that you want"
                    )
                file_of[name] = file_name
            named[path] = tuple(names)
        return ShardIndex(self.path, named)

    def files(self) -> set[str]:
        """Return the names of the files that are read."""
        if not self.is_index:
            return {self.path.name}
        index = set() if self.numbered else {self.path.name}
        return index | {path.name for path in self.read_index().names_of_file}


def find_model_file(folder: Path) -> ModelFile | None:
    """Return the file that leads to the model of a folder, or None.

    safetensors files are preferred to torch files, and a single file to an index.

    Raises:
        CheckpointError: several files could be the model, or a numbered file is missing.
    """
    names = sorted(path.name for path in folder.iterdir())
    for kind in (".safetensors", ".bin"):
        is_safetensors = kind == ".safetensors"
        indexes = [name for name in names if name.endswith(f"{kind}.index.json")]
        files = [name for name in names if name.endswith(kind) and name not in _NO_MODEL]
        # A file with a usual name is the model, whatever other files there are.
        if usual := [name for name in _SINGLE if name in files]:
            return ModelFile(folder / usual[0], False, is_safetensors, f"it has {usual[0]}")
        if usual := [name for name in _INDEXES if name in indexes] or indexes:
            _check_single(folder, usual)
            reason = f"it has the index {usual[0]}"
            return ModelFile(folder / usual[0], True, is_safetensors, reason)
        if numbered := find_numbered(folder, files):
            reason = f"it has {len(numbered)} numbered {kind} files"
            return ModelFile(folder, True, is_safetensors, reason, numbered)
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
        read = _read_safetensors if model.is_safetensors else _read_torch
        return read_shards(model.read_index(), read)
    path = find_inside(model.path.parent, model.path.name, named_by=str(model.path.parent))
    return _read_safetensors(path) if model.is_safetensors else _read_torch(path)


def _names_in(path: Path) -> list[str]:
    return [*read_header(path, follow_links=True).all_names()]


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
