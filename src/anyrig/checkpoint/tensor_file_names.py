"""The names of the safetensors files of a checkpoint, and the texts in the headers of shards.

::

    model.safetensors                          one writer
    model-00001-of-00003.safetensors           large models, or whole tensors divided among ranks,
    model.safetensors.index.json               with Hugging Face's index
    model.shard.00001-of-00004.safetensors     tensors in shards: the parts that rank 0 has, each
                                               under the name of its tensor

The header of a file of shards says where each part begins in its tensor, in the format of
torch.distributed.checkpoint's `HuggingFaceStorageWriter`. Its reader can read these files, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# The names that torch.distributed.checkpoint uses in the headers of safetensors files.
SHARDING_KEY, START_KEY = "DCP_SHARDING_INFO", "saved_offsets"

_SHARD = ".shard."
_FILE = re.compile(r"(.+?)(-\d{5}-of-\d{5}|\.shard\.\d{5}-of-\d{5})?\.safetensors")


def role_of(file: str) -> str | None:
    """Return what a file's tensors are, such as ``"model"`` or ``"optimizer"``; None if none.

    ``model-00001-of-00002.safetensors`` is a part of the model.
    """
    match = _FILE.fullmatch(file)
    return match[1] if match else None


def is_in_shards(stem: str, files: Iterable[str]) -> bool:
    """Return whether tensors lie in files of shards, given the names of a checkpoint's files."""
    return any(role_of(file) == stem and _SHARD in file for file in files)


def names_of_shards(stem: str, count: int) -> list[str]:
    """Return the names of the files of shards that `count` ranks write."""
    numbers = range(1, count + 1)
    return [f"{stem}{_SHARD}{index:05d}-of-{count:05d}.safetensors" for index in numbers]
