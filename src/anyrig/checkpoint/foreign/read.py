"""Read a file or folder that another tool wrote."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from ...private_names import refuse_missing
from .accelerate import is_state_file, read_states
from .contents import divide_contents
from .distributed import files_of_folder, read_distributed
from .hugging_face import find_model_file, read_model_file
from .lightning import find_lightning_reason
from .recognise import recognise
from .safetensors_file import read_safetensors
from .state import ForeignState, Format, Recognition
from .torch_file import read_torch_file
from .unread import find_unread


def read_foreign(
    path: str | os.PathLike[str], *, key: str | None = None, is_checked: bool = True
) -> ForeignState:
    """Return the tensors of a file or folder that another tool wrote, and what else it holds.

    Tensors are on the CPU, wherever they were saved. No code of the file is run.

    Args:
        path: the file or folder, in a format that `recognise` knows.
        key: the key of the model's state dict, in a file with several.
        is_checked: compare the checksums of a torch file, which reads the file once more.

    Raises:
        FileNotFoundError: nothing is there.
        UnsafeFileError: a pickle would run code, or a name leads out of its folder.
        CheckpointDamagedError: a file is truncated, altered or missing.
        CheckpointError: the format is not known, or there are no named tensors.
    """
    refuse_missing("checkpoint")
    path = Path(path)
    recognition = recognise(path)
    kind = recognition.format
    if kind is Format.SAFETENSORS:
        tensors, metadata = read_safetensors(path, follow_links=True)
        return ForeignState(path, recognition, tensors, {"metadata": metadata} if metadata else {})
    if kind in (Format.HUGGING_FACE, Format.HUGGING_FACE_TORCH, Format.ACCELERATE):
        model = find_model_file(path)
        if model is None:
            raise CheckpointError(f"{path} changed while it was read; try again")
        tensors = read_model_file(model)
        if kind is not Format.ACCELERATE:
            return ForeignState(path, recognition, tensors, unread=find_unread(path, model.files()))
        states, why = read_states(path)
        read = model.files() | {each.name for each in path.iterdir() if is_state_file(each.name)}
        return ForeignState(path, recognition, tensors, states, find_unread(path, read) | why)
    if kind is Format.DISTRIBUTED:
        found = _divide(path, recognition, read_distributed(path), key)
        return replace(found, unread=find_unread(path, files_of_folder(path)))
    value = read_torch_file(path, is_checked=is_checked)
    if reason := find_lightning_reason(value):
        recognition = Recognition(Format.LIGHTNING, reason)
        key = key or "state_dict"
    return _divide(path, recognition, value, key)


def _divide(path: Path, recognition: Recognition, value: Any, key: str | None) -> ForeignState:
    contents = divide_contents(value, str(path), key)
    if contents.key is not None and recognition.format is not Format.LIGHTNING:
        reason = f"{recognition.reason}; the tensors are under {contents.key!r}"
        recognition = Recognition(recognition.format, reason)
    return ForeignState(path, recognition, contents.tensors, contents.extra)
