"""List the classes and functions that a pickle imports, without running the pickle.

The list is for messages, and for refusing most hostile files before PyTorch reads them. Safety does
not depend on the list: PyTorch's weights_only reader and `metadata_pickle.py` check every name
again when they meet it.
"""

from __future__ import annotations

import pickletools
import re
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

# Private: there is no public list of the names that weights_only allows.
# tests/checkpoint/test_torch_names.py notices a change.
from torch._weights_only_unpickler import _get_allowed_globals

from ...errors import CheckpointDamagedError, CheckpointError, UnsafeFileError

# What converts a file or a folder, at the cost of running its code. Each line is a statement, or in
# parentheses.
_KEEP_TENSORS = """\
  keep = lambda value: (
  keep(value.state_dict()) if isinstance(value, torch.nn.Module)
  else {key: keep(each) for key, each in value.items()
  if isinstance(each, (dict, torch.Tensor, torch.nn.Module))}
  if isinstance(value, dict) else value)
"""
_CONVERT_FILE = (
    _KEEP_TENSORS
    + "  torch.save(keep(torch.load(FILE, map_location='cpu', weights_only=False)), 'weights.pt')"
)
_CONVERT_FOLDER = (
    "  from torch.distributed.checkpoint.format_utils import dcp_to_torch_save\n"
    "  dcp_to_torch_save(FOLDER, 'weights.pt')\n" + _CONVERT_FILE.replace("FILE", "'weights.pt'")
)
# Where the classes of tensors live of which a rank has a part.
_SHARDS = re.compile(r"torch\.distributed\._?(tensor|shard)\.")


class ByteReader(Protocol):
    """What `pickletools` reads from."""

    def read(self, size: int = -1, /) -> bytes:
        """Return at most `size` bytes."""
        ...

    def readline(self) -> bytes:
        """Return the bytes up to and including the next line feed."""
        ...


@dataclass(frozen=True)
class PickleScan:
    """What one pickle contains.

    Attributes:
        names: each class or function that it imports, as ``"module.name"``.
        opcodes: names of its instructions, as in `pickletools`.
        largest_memo: the largest index at which it stores a value, or -1.
        first_value: the first value that an instruction holds.
    """

    names: frozenset[str]
    opcodes: frozenset[str]
    largest_memo: int
    first_value: Any


def scan_pickle(file: ByteReader, where: str) -> PickleScan:
    """Read one pickle from `file` up to its end, and return what it contains.

    Raises:
        CheckpointDamagedError: the bytes are not a pickle.
    """
    names: set[str] = set()
    opcodes: set[str] = set()
    texts: list[str] = []  # the latest texts pushed, of which STACK_GLOBAL takes two
    memo: dict[int, str] = {}
    memo_count, largest_memo = 0, -1
    first_value: Any = None
    latest: str | None = None
    try:
        value: Any
        for opcode, value, _ in pickletools.genops(file):  # type: ignore[arg-type]
            name = opcode.name
            opcodes.add(name)
            if first_value is None and name not in ("PROTO", "FRAME"):
                first_value = value
            if name in ("GLOBAL", "INST"):
                names.add(_modern_name(*str(value).split(" ", 1)))
            elif name == "STACK_GLOBAL":
                names.add(_modern_name(*texts[-2:]) if len(texts) > 1 else "?.?")
            if name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
                index = memo_count if name == "MEMOIZE" else int(value)
                largest_memo = max(largest_memo, index)
                memo_count += 1
                if latest is not None:
                    memo[index] = latest
                continue
            latest = None
            if name in ("GET", "BINGET", "LONG_BINGET"):
                latest = memo.get(int(value))
            elif isinstance(value, str) and "UNICODE" in name:
                latest = value
            if latest is not None:
                texts[:] = [*texts[-1:], latest]
    except Exception as error:
        raise CheckpointDamagedError(
            f"{where} is damaged, or is not a checkpoint: its pickle cannot be parsed "
            f"({type(error).__name__}: {error}). Copy or download it again"
        ) from None
    return PickleScan(frozenset(names), frozenset(opcodes), largest_memo, first_value)


def check_weights_only(scan: PickleScan, where: str, *, in_folder: bool = False) -> None:
    """Raise if PyTorch's weights_only reader would refuse a name that the pickle imports.

    Names that the program allowed by `torch.serialization.add_safe_globals` are accepted.

    Args:
        scan: what the pickle contains.
        where: the file, for messages.
        in_folder: whether the pickle is a part of a folder of torch.distributed.checkpoint.

    Raises:
        UnsafeFileError: names every refused class and function, and how to convert the file.
        CheckpointError: the tensors are one rank's shards.
    """
    if shards := sorted(name for name in scan.names if _SHARDS.match(name)):
        raise CheckpointError(
            f"{where} is not read: it holds one rank's shards ({shards[0]}), not whole tensors; "
            "the other ranks' shards are in other files, or lost. Save the whole model on every "
            "rank: anyrig.save(folder, model=model), or torch.distributed.checkpoint.save"
        )
    if refused := scan.names - weights_only_names():
        raise refuse_names(refused, where, in_folder=in_folder)


def weights_only_names() -> frozenset[str]:
    """Return the names that PyTorch's weights_only reader allows now."""
    allowed_here = {
        str(each[1]) if isinstance(each, tuple) else f"{each.__module__}.{each.__qualname__}"
        for each in torch.serialization.get_safe_globals()
    }
    return always_allowed_names() | allowed_here


def always_allowed_names() -> frozenset[str]:
    """Return the names that PyTorch's weights_only reader allows in every process."""
    return frozenset(_get_allowed_globals())


def refuse_names(names: Iterable[str], where: str, *, in_folder: bool = False) -> UnsafeFileError:
    """Return the error for a pickle that imports these classes and functions."""
    listed = sorted(names)
    shown = ", ".join(listed[:20]) + (f" and {len(listed) - 20} more" if listed[20:] else "")
    return UnsafeFileError(
        f"{where} is not read: its pickle imports {shown}, and a pickle can run any code "
        "through such names. Nothing was run.\n"
        "If you know and trust where the file comes from, either allow its classes with "
        "torch.serialization.add_safe_globals([…]) and read it again, or convert it once, which "
        f"runs its code:\n{_CONVERT_FOLDER if in_folder else _CONVERT_FILE}"
    )


def _modern_name(module: str, name: str) -> str:
    """Return the dotted name, with Python 2's modules under their names of Python 3."""
    if (module, name) in NAME_MAPPING:
        module, name = NAME_MAPPING[module, name]
    else:
        module = IMPORT_MAPPING.get(module, module)
    return f"{module}.{name}"
