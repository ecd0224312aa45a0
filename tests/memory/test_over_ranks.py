"""`survive` and `fit_batch_size` over four ranks, with one virtual GPU per rank."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import cases_on_ranks
import pytest
from cases_on_ranks import CASES, RANKS

from forked_ranks import RanksError, run_forked


class Group:
    """Four ranks that run all cases, each of which writes a line for each case that has ended."""

    def __init__(self, folder: Path) -> None:
        self._files = [folder / str(rank) for rank in range(RANKS)]
        self._error: RanksError | None = None
        self._launch = threading.Thread(target=self._run, args=(str(folder),), daemon=True)
        self._launch.start()

    def _run(self, folder: str) -> None:
        try:
            run_forked(cases_on_ranks.__file__, "run", (folder,), RANKS)
        except RanksError as error:
            self._error = error

    def failures_of(self, case: str) -> list[str]:
        """Wait for a case; return the tracebacks of the ranks on which it failed."""
        while True:
            has_ended = not self._launch.is_alive()  # before the reports are read
            found = [read_report(file).get(case) for file in self._files]
            if None not in found or has_ended:
                return [
                    f"the group ended: {self._error}" if f is None else f for f in found if f != ""
                ]
            time.sleep(0.02)

    def end(self) -> None:
        self._launch.join()


def read_report(file: Path) -> dict[str, str]:
    text = file.read_text() if file.exists() else ""
    lines = text.splitlines()[: text.count("\n")]  # without one that is being written
    return dict(map(json.loads, lines))


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    group = Group(tmp_path_factory.mktemp("reports"))
    yield group
    group.end()


@pytest.mark.parametrize("case", CASES)
def test_four_ranks(case: str, group: Group) -> None:
    assert group.failures_of(case) == []
