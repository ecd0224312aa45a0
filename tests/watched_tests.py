"""Watch the tests themselves for hazards: ``pytest --watch-hazards``.

Each test runs within `watch_hazards`, and fails if there is a hazard that it does not look for. The
programs and ranks that a test forks are watched too, each by itself, and so is each test that an
inner pytest runs on a virtual rig. A test that makes a mistake on purpose names its kind:
``@pytest.mark.hazards("CUT")``. Left out are the tests that watch for hazards themselves, and one
that counts objects: of each optimizer, the watch remembers the lines until the end.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from watched_process import VARIABLE

if TYPE_CHECKING:
    from anyrig.hazards import Hazard

_LEFT_OUT = (
    "tests/hazards/",
    "tests/cli/test_hazards.py",
    "tests/parallel/test_no_growth.py::test_dropped_models_leave_nothing",
)


class WatchedTests:
    """The plugin that ``--watch-hazards`` adds."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._counts = Counter(tests=0, processes=0)
        os.environ[VARIABLE] = self._folder.name

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        if item.nodeid.startswith(_LEFT_OUT):
            del os.environ[VARIABLE]  # what these tests fork is left out, too
            try:
                return (yield)
            finally:
                os.environ[VARIABLE] = self._folder.name
        from anyrig.hazards import watch_hazards

        self._counts["tests"] += 1
        with watch_hazards(warn=False) as hazards:
            result = yield
        expected = {kind for mark in item.iter_markers("hazards") for kind in mark.args}
        found = [*hazards, *self._take_from_processes()]
        unexpected = [str(hazard) for hazard in found if hazard.kind.name not in expected]
        if unexpected:
            pytest.fail("\n".join(unexpected), pytrace=False)
        return result

    def _take_from_processes(self) -> Iterator[Hazard]:
        """Yield the hazards of the processes that have ended since the last call."""
        from anyrig.hazards import Hazard

        for file in sorted(Path(self._folder.name).glob("*.json")):
            self._counts["processes"] += 1
            yield from map(Hazard.from_json, json.loads(file.read_text()))
            file.unlink()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):  # a process of pytest-xdist
            session.config.workeroutput[VARIABLE] = dict(self._counts)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._counts.update(getattr(node, "workeroutput", {}).get(VARIABLE, {}))

    def pytest_unconfigure(self) -> None:
        self._folder.cleanup()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        tests, processes = self._counts["tests"], self._counts["processes"]
        terminalreporter.write_line(
            f"watched for hazards: {tests} tests and {processes} processes of theirs"
        )
