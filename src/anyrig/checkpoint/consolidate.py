"""Join a model in several files into one safetensors file, tensor by tensor.

The bytes of whole tensors in safetensors files are copied through a small buffer. Of tensors in
shards, memory holds one at a time. Files that ``torch.save`` wrote are mapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import CheckpointError
from .any_model import MODEL, open_any
from .atomic_file import open_atomically
from .foreign.distributed import find_model_names, read_folder_metadata, read_stored_tensor
from .foreign.hugging_face import find_model_file, read_model_file
from .foreign.recognise import recognise
from .foreign.shard_index import check_shard_names
from .foreign.state import Format, Recognition
from .safetensors_header import read_header
from .safetensors_writer import (
    TensorSource,
    lazy_source,
    source_of_range,
    source_of_tensor,
    write_safetensors,
)
from .snapshot_files import read_role
from .tensor_file_names import is_in_shards
from .tensor_in_parts import whole_tensor


@dataclass(frozen=True)
class Consolidated:
    """What `consolidate` has joined.

    Attributes:
        recognition: the format of the folder, and what showed it.
        tensors: how many tensors were written.
        bytes: the size of the file.
    """

    recognition: Recognition
    tensors: int
    bytes: int


def consolidate(folder: Path, target: Path, *, overwrite: bool = False) -> Consolidated:
    """Write the model of a folder of shards to one safetensors file, atomically.

    Args:
        folder: a folder of shards with an index, a folder of torch.distributed.checkpoint, a
            checkpoint of anyrig that several ranks wrote, or a series, of which the latest whole
            one is used.
        target: the file, ``*.safetensors``.
        overwrite: replace an existing file.

    Raises:
        CheckpointError: the folder cannot be read, or the target exists.
    """
    if target.suffix != ".safetensors":
        raise CheckpointError(f"{target} ends with {target.suffix!r}; name it *.safetensors")
    checkpoint = open_any(folder)
    folder = folder if checkpoint is None else checkpoint.path
    if checkpoint is not None and is_in_shards(MODEL, checkpoint.manifest.files):
        recognition = Recognition(Format.ANYRIG, f"{folder.name} has a manifest")
        sources = [
            lazy_source(name, each.dtype, tuple(each.shape), partial(whole_tensor, each))
            for name, each in read_role(folder, MODEL, checkpoint.manifest.files).items()
        ]
    else:
        recognition = recognise(folder)
        sources = _list_sources(folder, recognition)
    with open_atomically(target, overwrite=overwrite) as file:
        size_bytes = write_safetensors(file, sources, {"format": "pt"})
    return Consolidated(recognition, len(sources), size_bytes)


def _list_sources(folder: Path, recognition: Recognition) -> list[TensorSource]:
    if recognition.format is Format.DISTRIBUTED:
        metadata = read_folder_metadata(folder)
        return [
            lazy_source(
                name,
                metadata.tensors[full].dtype,
                metadata.tensors[full].shape,
                partial(read_stored_tensor, folder, metadata, full),
            )
            for name, full in find_model_names(folder, metadata).items()
        ]
    model = find_model_file(folder) if folder.is_dir() else None
    if model is None or not model.is_index:
        raise CheckpointError(
            f"{folder} holds a model in one file already: {recognition}. To change its format, "
            "run: anyrig checkpoint convert"
        )
    if not model.is_safetensors:
        return [source_of_tensor(name, each) for name, each in read_model_file(model).items()]
    index = model.read_index()
    sources: list[TensorSource] = []
    for path, names in index.names_of_file.items():
        header = read_header(path, follow_links=True)
        stored = header.all_names()
        check_shard_names(index, path, names, stored)
        sources += [source_of_range(name, path, header.tensors[stored[name]]) for name in names]
    return sources
