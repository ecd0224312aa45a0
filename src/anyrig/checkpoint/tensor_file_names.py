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
# The keys of a header's metadata that are not other names of tensors.
OWN_KEYS = ("format", SHARDING_KEY)

_SHARD = ".shard."
_NUMBERS = "[0-9]{5}-of-[0-9]{5}"
_FILE = re.compile(rf"(.+?)(-{_NUMBERS}|\.shard\.{_NUMBERS})?\.safetensors")
_STEM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\- ]*")
# With the longest ending, the name of a file has at most 255 bytes.
_LONGEST_STEM = 200


def role_of(file: str) -> str | None:
    """Return what a file's tensors are, such as ``"model"`` or ``"optimizer"``; None if none.

    ``model-00001-of-00002.safetensors`` is a part of the model.
    """
    match = _FILE.fullmatch(file)
    return match[1] if match else None


def is_in_shards(stem: str, files: Iterable[str]) -> bool:
    """Return whether tensors lie in files of shards, given the names of a checkpoint's files."""
    matches = (_FILE.fullmatch(file) for file in files)
    return any(each and each[1] == stem and (each[2] or "").startswith(_SHARD) for each in matches)


def find_bad_stem(stem: str) -> str | None:
    """Return why names of files cannot begin with `stem`, or None if they can."""
    if not _STEM.fullmatch(stem):
        return (
            "has characters other than ASCII letters, digits, _, -, . and spaces, or begins badly"
        )
    if len(stem) > _LONGEST_STEM:
        return f"has {len(stem)} characters, more than {_LONGEST_STEM}"
    if role_of(f"{stem}.safetensors") != stem:
        return "ends like the number of a file"
    return None


def names_of_shards(stem: str, count: int) -> list[str]:
    """Return the names of the files of shards that `count` ranks write."""
    numbers = range(1, count + 1)
    return [f"{stem}{_SHARD}{index:05d}-of-{count:05d}.safetensors" for index in numbers]
