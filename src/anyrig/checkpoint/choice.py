"""Choose the checkpoint to load, on all ranks together.

::

    rank 0 names a checkpoint of the right sizes ──▶ each rank hashes a part of its files
              ▲                                                       │
              └──── damaged: name the next one ◀──── a rank finds ────┘──── whole: load it

A training run that saves with ``keep=1`` may remove the checkpoint meanwhile. Then a newer one
exists, and the ranks choose again.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from ..errors import CheckpointDamagedError, CheckpointError, OtherRankError
from .given_path import absolute_path
from .manifest import MANIFEST_NAME, FileFact, read_manifest
from .over_ranks import Ranks
from .series import Checkpoint, Series, is_checkpoint_folder, open_checkpoint
from .verify import require_whole


def choose(ranks: Ranks, given: str | os.PathLike[str], which: str, verify: bool) -> Path | None:
    """Return the folder of the checkpoint to load, or None if it was removed meanwhile.

    The result is the same on every rank.

    Args:
        ranks: the ranks that load together.
        given: the folder of a series, or of one checkpoint.
        which: the checkpoint of a series: ``"latest"`` or ``"best"``. Damaged checkpoints are
            skipped with a warning.
        verify: whether to compare the hashes of files, or only their sizes.

    Raises:
        CheckpointError: there is no checkpoint.
        CheckpointDamagedError: the checkpoint, or every checkpoint of the series, is damaged.
        OtherRankError: another rank cannot choose or see the checkpoint.
        RankWaitError: another rank did not arrive in time.
    """
    damaged: list[CheckpointError] = []
    failed: BaseException | None = None
    folder = Path()
    try:
        folder = absolute_path(given)
    except CheckpointError as error:
        failed = error
    candidates = _candidates(folder, which, damaged)
    while True:
        found = ""
        if ranks.rank == 0 and failed is None:
            try:
                found = str(_next(candidates, folder, which, damaged).path)
            except Exception as error:
                failed = error
        chosen = Path(ranks.agree({"path": str(folder), "which": which}, failed, found)[0])
        damage = _find_damage(ranks, chosen) if verify else None
        if damage is None:
            break
        if was_removed(ranks, chosen):
            return None
        if not isinstance(damage, CheckpointDamagedError):
            raise damage
        damaged.append(damage)
    for each in damaged if ranks.rank == 0 else ():
        warnings.warn(f"{each}: loading {chosen} instead", RuntimeWarning, stacklevel=3)
    return chosen


def _candidates(folder: Path, which: str, damaged: list[CheckpointError]) -> Iterator[Checkpoint]:
    if which not in ("latest", "best"):
        raise CheckpointError(f"which must be 'latest' or 'best'; got {which!r}")
    if is_checkpoint_folder(folder):
        yield open_checkpoint(folder, hashes=False)
    else:
        yield from Series(folder).candidates(which, damaged)


def _next(
    candidates: Iterator[Checkpoint], folder: Path, which: str, damaged: list[CheckpointError]
) -> Checkpoint:
    found = next(candidates, None)
    if found is not None:
        return found
    if is_checkpoint_folder(folder):
        raise damaged[0]
    if damaged:
        raise CheckpointDamagedError(
            f"{folder} has no whole checkpoint. {damaged[0]}", getattr(damaged[0], "path", None)
        )
    what = "checkpoint with a metric" if which == "best" else "checkpoint"
    raise CheckpointError(f"{folder} has no {what}")


def was_removed(ranks: Ranks, folder: Path) -> bool:
    """Return whether a checkpoint, which was there, is gone; every rank must call this."""
    return ranks.agree({}, None, "" if os.path.lexists(folder) else "gone")[0] == "gone"


def _find_damage(ranks: Ranks, folder: Path) -> CheckpointError | OtherRankError | None:
    """Return the damage that any rank finds in the files, or None; the same on every rank.

    An error that is not a `CheckpointDamagedError` says that a rank does not see the checkpoint.
    """
    failed: BaseException | None = None
    mark = problem = ""
    try:
        found = (folder / MANIFEST_NAME).stat()
        mark = f"{found.st_ino} {found.st_mtime_ns}"
    except OSError as error:
        problem = error.strerror or str(error)
    told = [json.loads(text) for text in ranks.agree({}, None, json.dumps([mark, problem]))]
    for rank, (_, its) in enumerate(told):
        if its:
            unseen = CheckpointError(
                f"{folder}, which rank 0 has chosen, cannot be read: {its}. Load from a folder "
                "that all nodes share"
            )
            return unseen if rank == ranks.rank else ranks.failure_of(rank, f"{unseen}")
    marks = [each for each, _ in told]
    # Nodes with a copy of their own verify their copy.
    sharers = [rank for rank, each in enumerate(marks) if each == mark]
    damage = ["", ""]
    try:
        manifest = read_manifest(folder)
        names = divide_files(manifest.files, len(sharers))[sharers.index(ranks.rank)]
        require_whole(folder, manifest, names=names)
    except CheckpointDamagedError as error:
        damage = [str(error), str(error.path)]
    except Exception as error:
        failed = error
    for text in ranks.agree({}, failed, json.dumps(damage)):
        message, path = json.loads(text)
        if message:
            return CheckpointDamagedError(message, Path(path))
    return None


def divide_files(files: dict[str, FileFact], count: int) -> list[list[str]]:
    """Divide the names of files into `count` parts of about equal bytes, in the given order."""
    part_of: dict[str, int] = {}
    sizes = [0] * count
    for name, fact in sorted(files.items(), key=lambda item: (-item[1].bytes, item[0])):
        part_of[name] = sizes.index(min(sizes))
        sizes[part_of[name]] += fact.bytes
    return [[name for name in files if part_of[name] == part] for part in range(count)]
