"""A series: a folder whose subfolders are the checkpoints of one training run."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointDamagedError, CheckpointError
from .folder_name import LARGEST_NUMBER, is_folder_name, number_in
from .manifest import MANIFEST_NAME, Manifest, read_manifest
from .verify import find_rename, require_whole

TEMPORARY_PREFIX = ".tmp-"


@dataclass(frozen=True)
class Checkpoint:
    """The folder of one checkpoint, and its manifest.

    Attributes:
        path: the folder.
        manifest: the content of its manifest.
    """

    path: Path
    manifest: Manifest


@dataclass(frozen=True)
class Series:
    """The folder of a series; it need not exist yet.

    ::

        runs/a/000007-step-1200/manifest.json      a checkpoint: number of the save, then the step
        runs/a/.tmp-000008-…/                      a save that is running, or did not finish

    Attributes:
        folder: the folder of the series.
    """

    folder: Path

    def folders(self) -> list[Path]:
        """Return the folders that are named as checkpoints, the newest first.

        Raises:
            CheckpointError: the folder of the series is missing or cannot be read.
        """
        try:
            found = [path for path in self.folder.iterdir() if is_folder_name(path.name)]
        except FileNotFoundError:
            raise CheckpointError(
                f"{self.folder} does not exist, so it has no checkpoints. Is the path right?"
            ) from None
        except NotADirectoryError:
            raise CheckpointError(
                f"{self.folder} is a file, and checkpoints of anyrig are folders. To read what "
                "another tool saved: anyrig.checkpoint.read_foreign(path).fit_names("
                "model.state_dict()), for model.load_state_dict()"
            ) from None
        except OSError as error:
            raise CheckpointError(
                f"{self.folder} cannot be read: {error.strerror or error}"
            ) from error
        return sorted(found, key=lambda path: (number_in(path.name), path.name), reverse=True)

    def checkpoints(self, damaged: list[CheckpointError] | None = None) -> Iterator[Checkpoint]:
        """Yield the checkpoints whose files have the sizes that were saved, the newest first.

        A checkpoint that another process removes meanwhile is not damaged. The series then has
        newer ones, which follow.

        Args:
            damaged: gets an error for each folder that is not a whole checkpoint.
        """
        left, tried = self.folders(), set[Path]()
        while left:
            folder = left.pop(0)
            tried.add(folder)
            try:
                found = open_checkpoint(folder, hashes=False)
                # A folder that was given the name of a later save would wrongly count as the
                # latest.
                if (renamed := find_rename(folder, found.manifest)) is not None:
                    raise CheckpointDamagedError(str(renamed), folder)
            except CheckpointError as error:
                if not os.path.lexists(folder):
                    left = [each for each in self.folders() if each not in tried]
                elif damaged is not None:
                    damaged.append(error)
            else:
                yield found

    def latest(
        self, *, hashes: bool = True, damaged: list[CheckpointError] | None = None
    ) -> Checkpoint | None:
        """Return the newest whole checkpoint, or None.

        Args:
            hashes: whether to compare the hashes of its files too, not only their sizes.
            damaged: gets an error for each newer folder that is not a whole checkpoint.
        """
        return _first_whole(self.candidates("latest", damaged), hashes, damaged)

    def best(
        self, *, hashes: bool = True, damaged: list[CheckpointError] | None = None
    ) -> Checkpoint | None:
        """Return the whole checkpoint with the best metric, or None if none has a metric."""
        return _first_whole(self.candidates("best", damaged), hashes, damaged)

    def candidates(
        self, which: str, damaged: list[CheckpointError] | None = None
    ) -> Iterator[Checkpoint]:
        """Yield checkpoints as in `checkpoints`, the best choice first.

        Args:
            which: ``"latest"``, or ``"best"``: only checkpoints with a metric. The newest of them
                decides whether a high or a low metric is good. Of equal metrics, the newest is the
                best.
            damaged: gets an error for each folder that is not a whole checkpoint.
        """
        if which == "latest":
            yield from self.checkpoints(damaged)
            return
        measured = [each for each in self.checkpoints(damaged) if _metric(each) is not None]
        sign = -1 if measured and measured[0].manifest.best == "min" else 1
        measured.sort(key=lambda each: sign * (_metric(each) or 0.0), reverse=True)  # stable
        yield from measured

    def next_number(self) -> int:
        """Return a number above those of all checkpoints, whole or not.

        A folder without a manifest was not made by a save, so its number does not raise the result,
        but the result is not a number that such a folder has.

        Raises:
            CheckpointError: the largest number is taken.
        """
        folders = self.folders() if self.folder.exists() else []
        taken = {number_in(each.name) for each in folders}
        saved = (each for each in folders if os.path.lexists(each / MANIFEST_NAME))
        number = next((number_in(each.name) for each in saved), 0) + 1
        while number in taken:
            number += 1
        if number > LARGEST_NUMBER:
            raise CheckpointError(
                f"{folders[0]} has the largest number that a checkpoint can have, so that no newer "
                "one can be added. Rename the folder to the number of its save, or remove it"
            )
        return number

    def surplus(self, keep: int) -> list[Path]:
        """Return the whole checkpoints older than the newest `keep`, the oldest first.

        The best checkpoint is not surplus. Damaged folders neither count nor are surplus. A link to
        a checkpoint elsewhere is not surplus.
        """
        whole = sorted(self.checkpoints(), key=lambda each: each.manifest.number, reverse=True)
        found = [each.path for each in whole]
        best = self.best(hashes=False)
        kept = {*found[:keep], *([] if best is None else [best.path])}
        return [path for path in reversed(found) if path not in kept and not path.is_symlink()]


def open_checkpoint(folder: Path, *, hashes: bool = True) -> Checkpoint:
    """Return the checkpoint in a folder.

    Raises:
        CheckpointDamagedError: the folder is not a whole checkpoint; the message names the file.
        CheckpointError: it cannot be read, or a later version of anyrig has written it.
    """
    manifest = read_manifest(folder)
    require_whole(folder, manifest, hashes=hashes)
    return Checkpoint(folder, manifest)


def is_checkpoint_folder(folder: Path) -> bool:
    """Return whether a path names one checkpoint's folder, whole or not, rather than a series.

    A series may be named like a checkpoint, for example by the number of a job.

    Raises:
        CheckpointError: the path cannot be read.
    """
    try:
        if (folder / MANIFEST_NAME).exists():
            return True
        is_named = is_folder_name(folder.name) and folder.is_dir()
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror or error}") from error
    return is_named and not any(Series(folder).folders())


def _metric(checkpoint: Checkpoint) -> float | None:
    metric = checkpoint.manifest.metric
    return None if metric is None or math.isnan(metric) else metric


def _first_whole(
    candidates: Iterator[Checkpoint], hashes: bool, damaged: list[CheckpointError] | None
) -> Checkpoint | None:
    for candidate in candidates:
        try:
            if hashes:
                require_whole(candidate.path, candidate.manifest)
        except CheckpointDamagedError as error:
            if damaged is not None:
                damaged.append(error)
        else:
            return candidate
    return None
