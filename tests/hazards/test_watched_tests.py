"""``pytest --watch-hazards`` fails a test for the hazards of it and of what it forks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from forked_programs import run_forked
from watched_process import VARIABLE
from watched_tests import WatchedTests

PROGRAM = """
import torch
parameter = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([parameter], 0.1)
for _ in range(4):
    (parameter * 2).sum().backward()
    optimizer.step()
"""


def run_watched(name: str, test: Any, *expected: str) -> None:
    marks = [pytest.mark.hazards(*expected).mark]
    item = SimpleNamespace(nodeid=name, iter_markers=lambda _: marks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "")
        watched = WatchedTests()
        call = watched.pytest_runtest_call(cast(pytest.Item, item))
        next(call)
        test()
        try:
            with pytest.raises(StopIteration):
                call.send(None)
        finally:
            watched.pytest_unconfigure()


def test_the_hazards_of_a_test_and_of_its_programs_fail_it() -> None:
    def train() -> None:
        exec(compile(PROGRAM, "train.py", "exec"), {"torch": torch})

    with pytest.raises(pytest.fail.Exception, match="never cleared"):
        run_watched("test_training.py", train)
    with pytest.raises(pytest.fail.Exception, match="never cleared"):
        run_watched("test_training.py", lambda: run_forked("-c", PROGRAM))
    run_watched("test_training.py", lambda: None)
    run_watched("tests/hazards/test_training.py", train)


def test_a_test_may_make_the_mistakes_that_it_names() -> None:
    run_watched("test_training.py", lambda: run_forked("-c", PROGRAM), "CUT", "ACCUMULATED")
    with pytest.raises(pytest.fail.Exception, match="never cleared"):
        run_watched("test_training.py", lambda: run_forked("-c", PROGRAM), "CUT")
