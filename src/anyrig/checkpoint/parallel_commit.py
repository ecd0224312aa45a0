"""Commit a checkpoint whose files all ranks write.

::

    rank 0                                             rank 1
    mkdir  .tmp-000007-…      ──── its name ────▶      sees the folder, or refuses
    write and fsync its files                          write and fsync its files
    check  sizes, tensors     ◀── sizes, hashes ───
    write  manifest.json, fsync, rename, fsync         (commit.py)
    return                    ────── the end ─────▶    return

Until rank 0 renames the folder, the series is unchanged, whichever rank fails or ends. The ranks
communicate through the group's store only, so a thread may run `write` while training uses
collectives.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .commit import (
    Check,
    Parts,
    begin,
    make_temporary,
    publish,
    remove_surplus,
    removed_after_failure,
    write_files,
)
from .disk import Disk
from .manifest import FileFact, Manifest
from .over_ranks import Ranks, describe_problem
from .series import Checkpoint, Series
from .verify import require_sizes

# A network file system may show a new folder to another node only seconds later.
_VISIBLE_SECONDS = 10.0
_PAUSE_SECONDS = 0.05


class ParallelCommit:
    """Writes one checkpoint with all ranks.

    Args:
        ranks: the ranks that commit together.
        series: gets the checkpoint.
        disk: performs the file operations.
    """

    def __init__(self, ranks: Ranks, series: Series, disk: Disk | None = None) -> None:
        self._ranks, self._series = ranks, series
        self._disk = disk or Disk()
        self._folder = series.folder

    def begin(self) -> None:
        """Create the temporary folder, and check that every rank sees it.

        Raises:
            CheckpointError: the folder cannot be created, or this rank does not see it.
            OtherRankError: another rank has failed.
            RankWaitError: another rank did not arrive in time.
        """
        failed: BaseException | None = None
        folder: Path | None = None
        if self._ranks.rank == 0:
            try:
                folder = begin(self._series, self._disk)
            except Exception as error:
                failed = error
        with removed_after_failure(folder, self._disk) if folder else nullcontext():
            try:
                if folder is not None:
                    make_temporary(folder, self._disk)
            except Exception as error:
                failed = error
            note = f"{socket.gethostname()} {folder or ''}"
            host, _, name = self._ranks.agree({}, failed, note)[0].partition(" ")
            self._folder = Path(name)
            is_visible = _becomes_visible(self._folder)
            self._ranks.agree({}, None if is_visible else self._explain_invisible(host))

    def write(
        self,
        contents: Mapping[str, Parts],
        describe: Callable[[int, dict[str, FileFact]], Manifest],
        check: Check,
        keep: int | None,
    ) -> Checkpoint | None:
        """Write this rank's files; on rank 0 return the checkpoint, once it is in the series.

        Args:
            contents: the content of each of this rank's files, by name.
            describe: returns the manifest for the checkpoint's number and its files.
            check: raises if the files of all ranks do not make a checkpoint that can be loaded.
            keep: how many checkpoints to keep, in addition to the best one; None for all.

        Raises:
            CheckpointError: a file cannot be written; the message names the file. The series is
                unchanged.
            OtherRankError: on rank 0: another rank could not write.
            RankWaitError: on rank 0: another rank has not written in time.
        """
        if self._ranks.rank != 0:
            self._write_and_report(contents)
            return None
        with removed_after_failure(self._folder, self._disk):
            failed: BaseException | None = None
            files: dict[str, FileFact] = {}
            try:
                files = write_files(self._folder, contents, self._disk)
            except Exception as error:
                failed = error
            # Wait for the reports even after a failure: the folder must stay while another rank
            # writes to it.
            reports = [
                self._ranks.collect(self._folder.name, rank) for rank in range(1, self._ranks.count)
            ]
            if failed is not None:
                raise failed
            for rank, report in enumerate(reports, 1):
                if report["problem"] is not None:
                    raise self._ranks.failure_of(rank, report["problem"])
                theirs = {name: FileFact(**fact) for name, fact in report["files"].items()}
                require_sizes(self._folder, theirs, f"rank {rank}")
                files |= theirs
            checkpoint = publish(self._series, self._folder, describe, files, check, self._disk)
        remove_surplus(self._series, keep, self._disk)
        return checkpoint

    def _write_and_report(self, contents: Mapping[str, Parts]) -> None:
        report: dict[str, Any] = {"files": {}, "problem": None}
        try:
            files = write_files(self._folder, contents, self._disk)
            report["files"] = {name: asdict(fact) for name, fact in files.items()}
        except BaseException as error:
            report["problem"] = describe_problem(error)
            raise
        finally:
            self._ranks.post(self._folder.name, report)

    def _explain_invisible(self, host: str) -> CheckpointError:
        return CheckpointError(
            f"rank {self._ranks.rank} on {socket.gethostname()} does not see {self._folder}, which "
            f"rank 0 on {host} has created: the nodes do not share this folder. Save to a folder "
            "that all nodes share, or let rank 0 write everything with sharded=False"
        )


def _becomes_visible(folder: Path) -> bool:
    deadline = time.monotonic() + _VISIBLE_SECONDS
    while not folder.is_dir():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True
