"""Recognise the format of a file or folder by what it contains."""

from __future__ import annotations

from pathlib import Path

from ...errors import CheckpointError
from ...regular_file import open_regular
from ..safetensors_header import has_safetensors_start
from .accelerate import find_accelerate_reason
from .distributed import METADATA_NAME
from .hugging_face import find_model_file
from .inside import check_regular
from .state import Format, Recognition
from .torch_file import LEGACY_START, TAR_MARK, ZIP_START, refuse_plain_pickle

_KNOWN = "a torch file, a safetensors file, or a folder of Hugging Face, accelerate or "
_KNOWN += "torch.distributed.checkpoint"
_HEAD_BYTES = 512


def recognise(path: Path) -> Recognition:
    """Return the format of a file or folder, and what shows it.

    Names decide only for folders, whose formats are defined by the names of their files. A torch
    file may turn out to be a Lightning checkpoint when it is read.

    Raises:
        FileNotFoundError: nothing is there.
        UnsafeFileError: it is an ordinary pickle.
        CheckpointError: anyrig does not read its format.
    """
    if path.is_dir():
        return _recognise_folder(path)
    check_regular(path)
    with open_regular(path, follow_links=True) as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(ZIP_START):
        return Recognition(Format.TORCH, "it is a zip archive, as torch.save writes")
    if head.startswith(LEGACY_START):
        return Recognition(Format.LEGACY_TORCH, "it begins with PyTorch's magic number")
    if has_safetensors_start(head):
        return Recognition(Format.SAFETENSORS, "it begins with a length and a JSON header")
    if head[:1] == b"\x80" and head[1:2] in b"\x01\x02\x03\x04\x05" and len(head) > 2:
        raise refuse_plain_pickle(path)
    position, mark = TAR_MARK
    if head[position:].startswith(mark):
        raise CheckpointError(
            f"{path} is a tar archive, as PyTorch wrote before version 0.1.10, and is not read. "
            "If you trust it, load it with torch.load and weights_only=False, and save it again"
        )
    if not head:
        raise CheckpointError(f"{path} is empty. Copy or download it again")
    raise CheckpointError(
        f"{path} is not recognised: it begins with {head[:8]!r}. anyrig reads {_KNOWN}"
    )


def _recognise_folder(path: Path) -> Recognition:
    if (path / METADATA_NAME).exists():
        return Recognition(Format.DISTRIBUTED, f"it has a {METADATA_NAME} file")
    model = find_model_file(path)
    if model is None:
        names = sorted(each.name for each in path.iterdir())
        listed = ", ".join(names[:8]) + (" and more" if len(names) > 8 else "") or "no files"
        raise CheckpointError(f"{path} is not recognised: it has {listed}. anyrig reads {_KNOWN}")
    if reason := find_accelerate_reason(path):
        return Recognition(Format.ACCELERATE, reason)
    kind = Format.HUGGING_FACE if model.is_safetensors else Format.HUGGING_FACE_TORCH
    return Recognition(kind, model.reason)
