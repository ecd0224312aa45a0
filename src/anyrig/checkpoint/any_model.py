"""Read the tensors of a checkpoint, whoever wrote it: anyrig or another tool."""

from __future__ import annotations

import warnings
from pathlib import Path

from ..errors import CheckpointDamagedError, CheckpointError
from .foreign.read import read_foreign
from .foreign.state import ForeignState, Format, Recognition
from .series import Checkpoint, Series, is_checkpoint_folder, open_checkpoint
from .snapshot_files import VALUES_NAME, read_role
from .tensor_file_names import role_of
from .tensor_in_parts import whole_tensor

MODEL = "model"


def is_series(path: Path) -> bool:
    """Return whether a path names a folder of anyrig's checkpoints."""
    if is_checkpoint_folder(path) or not path.is_dir():
        return False
    return any(True for _ in Series(path).folders())


def open_any(path: Path) -> Checkpoint | None:
    """Return anyrig's checkpoint at a path, or the latest whole one of a series; None for others.

    Raises:
        CheckpointDamagedError: the checkpoint is damaged, or the series has no whole checkpoint.
    """
    if not is_series(path):
        return open_checkpoint(path) if path.is_dir() and is_checkpoint_folder(path) else None
    damaged: list[CheckpointError] = []
    latest = Series(path).latest(damaged=damaged)
    if latest is None:
        raise CheckpointDamagedError(f"{path} has no whole checkpoint: {damaged[0]}")
    for error in damaged:
        warnings.warn(f"{error}; using {latest.path.name}", RuntimeWarning, stacklevel=2)
    return latest


def read_any_model(path: Path, *, key: str | None = None, whole: bool = False) -> ForeignState:
    """Return the model's tensors of a checkpoint in any recognised format.

    Args:
        path: a checkpoint of anyrig, a series, or what `read_foreign` reads.
        key: the key of the model's state dict, in a file with several; in a checkpoint of anyrig,
            the keyword with which a module was saved, by default ``"model"``.
        whole: from a checkpoint of anyrig, also return the optimizer's tensors, under names such as
            ``"optimizer/…"``.

    Raises:
        CheckpointError: the checkpoint is damaged, not recognised, or not safe to read.
    """
    checkpoint = open_any(path)
    if checkpoint is None:
        return read_foreign(path, key=key)
    recognition = Recognition(Format.ANYRIG, f"{checkpoint.path.name} has a manifest")
    wanted = key or MODEL
    roles = {file: role for file in sorted(checkpoint.manifest.files) if (role := role_of(file))}
    if wanted not in roles.values() and not whole:
        raise CheckpointError(
            f"{checkpoint.path} has no {wanted!r}, but {', '.join(sorted({*roles.values()}))}. "
            "Choose one of these: key=…, or --key on the command line"
        )
    tensors = {
        name if role == wanted else f"{role}/{name}": whole_tensor(tensor)
        for role in sorted({*roles.values()})
        if whole or role == wanted
        for name, tensor in read_role(checkpoint.path, role, roles).items()
    }
    left_out = {} if whole else dict.fromkeys({*roles.values()}, f"the model is {wanted!r}")
    left_out.pop(wanted, None)
    if VALUES_NAME in checkpoint.manifest.files:
        left_out[VALUES_NAME] = "numbers, strings and states that are not tensors"
    unread = dict(sorted(left_out.items()))
    return ForeignState(checkpoint.path, recognition, tensors, unread=unread)
