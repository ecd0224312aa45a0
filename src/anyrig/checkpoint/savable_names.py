"""Which names a save can keep, in the names of files, in their headers and for `load`.

A name that is refused here would make a checkpoint that cannot be loaded, or replace what another
name stands for.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import CheckpointError
from .snapshot import Snapshot
from .snapshot_files import captured_tensors, stem_of_optimizer
from .tensor_file_names import find_bad_stem

# Arguments of `load` that `save` does not have: an object of such a name could not be loaded.
ARGUMENTS_OF_LOAD = (
    "path",
    "which",
    "random_numbers",
    "exact",
    "verify",
    "timeout_seconds",
    "convert_dtypes",
)
# The key of a safetensors header that is not a tensor.
_RESERVED = "__metadata__"


def require_savable(snapshot: Snapshot, objects: Iterable[str]) -> None:
    """Raise if a name of a captured snapshot cannot be kept.

    Args:
        snapshot: the state that will be saved.
        objects: the names of modules and other objects that the caller has chosen.

    Raises:
        CheckpointError: the message names the name, and what is wrong with it.
    """
    for name in objects:
        if name in ARGUMENTS_OF_LOAD:
            raise CheckpointError(
                f"an object is saved as {name}=, which is an argument of load() already, so that "
                "it could not be loaded. Use another name"
            )
        if name in snapshot.modules and (problem := find_bad_stem(name)):
            raise CheckpointError(
                f"a module is saved as {name!r:.80}, which becomes the name of a file, but "
                f"{problem}. Use another name"
            )
    for key in snapshot.optimizers:
        if problem := find_bad_stem(stem := stem_of_optimizer(key)):
            raise CheckpointError(
                f"an optimizer has the key {key!r:.80}, which becomes part of the name of a file, "
                f"but {stem!r:.80} {problem}. Use another key"
            )
        if stem in snapshot.modules:
            raise CheckpointError(
                f"the module {stem!r} and the optimizer {key!r} would be saved in one file, "
                f"{stem}.safetensors. Rename one of them"
            )
    for stem, tensors in captured_tensors(snapshot).items():
        for name in tensors:
            if problem := _find_bad_name(name):
                raise CheckpointError(
                    f"{stem} has a tensor with the name {name!r:.80}, which {problem}. Rename it"
                )


def require_distinct(chosen: Iterable[str], given: Iterable[str]) -> None:
    """Raise if the caller has chosen a name that anyrig has given to another object.

    Raises:
        CheckpointError: the message names it.
    """
    for name in sorted({*chosen} & {*given}):
        raise CheckpointError(
            f"an object is saved as {name!r}, which is the name of a part of scheduler=, scaler= "
            "or loader= already. Use another name"
        )


def _find_bad_name(name: str) -> str | None:
    if name == _RESERVED:
        return "safetensors reserves"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "is not valid Unicode"
    return None
