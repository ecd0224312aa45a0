"""Write the model of any recognised checkpoint as one safetensors file or one plain torch file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError
from .any_model import read_any_model
from .atomic_file import open_atomically
from .foreign.state import Recognition
from .safetensors_writer import source_of_tensor, write_safetensors

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")


@dataclass(frozen=True)
class Converted:
    """What a conversion did.

    Attributes:
        recognition: the format of the source, and what showed it.
        tensors: how many tensors were written.
        bytes: the size of the file.
        renamed: how many names lost a part that a wrapper had added.
        left_out: what only the source holds, such as ``"optimizer"``; for a checkpoint of anyrig
            also ``"values.pt"``.
    """

    recognition: Recognition
    tensors: int
    bytes: int
    renamed: int
    left_out: tuple[str, ...]


def convert(
    source: Path,
    target: Path,
    *,
    overwrite: bool = False,
    keep_names: bool = False,
    key: str | None = None,
) -> Converted:
    """Write the model's tensors of `source` to the file `target`, atomically.

    Args:
        source: a checkpoint of anyrig; a series, of which the latest whole checkpoint is used; or a
            file or folder in any format that `read_foreign` reads.
        target: ``*.safetensors``, or ``*.pt``, ``*.pth``, ``*.bin`` or ``*.ckpt`` for a state dict
            written by ``torch.save``.
        overwrite: replace an existing file.
        keep_names: keep what wrappers such as DistributedDataParallel added to the names.
        key: the key of the model's state dict, in a source with several.

    Raises:
        CheckpointError: the source cannot be read, or the target exists or has another suffix.
    """
    is_torch = target.suffix in TORCH_SUFFIXES
    if not is_torch and target.suffix != ".safetensors":
        raise CheckpointError(
            f"{target} ends with {target.suffix!r}; name the target *.safetensors or, for a torch "
            f"file, *{', *'.join(TORCH_SUFFIXES)}"
        )
    state = read_any_model(source, key=key)
    tensors = dict(state.tensors) if keep_names else state.plain_tensors()
    with open_atomically(target, overwrite=overwrite) as file:
        if is_torch:
            torch.save(_plain(tensors), file)
        else:
            sources = [source_of_tensor(name, each) for name, each in tensors.items()]
            write_safetensors(file, sources, {"format": "pt"})
        size_bytes = file.tell()
    renamed = len(tensors.keys() - state.tensors.keys())
    left_out = (*state.extra, *state.unread)
    return Converted(state.recognition, len(tensors), size_bytes, renamed, left_out)


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without gradients, in storages that are not much larger than needed."""
    plain = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "meta":
            raise CheckpointError(f"{name!r} is on the meta device, so it has no values")
        detached = tensor.detach()
        is_strided = detached.layout is torch.strided and not detached.is_quantized
        if is_strided and detached.untyped_storage().nbytes() > 2 * detached.nbytes + 4096:
            detached = detached.clone()
        plain[name] = detached
    return plain
